"""Compiles a declaration to straight-line Python, once per class and version.

What is known from the version (which fields exist, how lengths are written, which nulls are legal)
is decided while the source is written, so none of it is asked while messages pass. Neighbouring
fields of fixed size, and the length that follows them, share one `struct.Struct`; structures inside
structures are unfolded into nested loops, so decoding one message is one call.

A sliced function does the same work as a generator: it yields after every ELEMENTS_PER_SLICE
elements of arrays of structures or strings, or as many numbers as take as long, so that the event
loop can run others in between.

Every announced length is compared with the bytes that remain before anything is allocated. Reading
past the end with `struct` or an index raises, which `codec` reports as malformed.
"""

import struct
from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias

from odradek.protocol import schema
from odradek.protocol.primitives import (
    FIXED,
    MAX_STRING,
    MAX_UNKNOWN_TAGS,
    SHORT_UVARINTS,
    Kind,
    MalformedError,
    TooManyElementsError,
    read_uvarint,
    skip_tagged_fields,
    write_uvarint,
)
from odradek.protocol.regions import Buffer, Part, part_length
from odradek.protocol.schema import Field

Decoder: TypeAlias = Callable[[Buffer, int, int, int], tuple[Any, int]]
Adder: TypeAlias = Callable[[Part], None]
Encoder: TypeAlias = Callable[[Any, Adder, Adder], None]
SlicedDecoder: TypeAlias = Callable[[Buffer, int, int, int], Generator[None, None, tuple[Any, int]]]
SlicedEncoder: TypeAlias = Callable[[Any, Adder, Adder], Generator[None, None, None]]

# An element takes about two microseconds, an unusual one ten.
ELEMENTS_PER_SLICE: Final = 500
# Numbers of an array that take as long as an element of another one.
NUMBERS_PER_ELEMENT: Final = 40
NUMBERS_AT_ONCE: Final = 10_000


def compile_decoder(cls: type, version: int) -> Decoder:
    """Return `decode(buffer, position, end, most_elements) -> (message, next position)`."""
    return _decoder(cls, version, sliced=False)  # type: ignore[no-any-return]


def compile_sliced_decoder(cls: type, version: int) -> SlicedDecoder:
    """Return the decoder as a generator, which returns what the other one does."""
    return _decoder(cls, version, sliced=True)  # type: ignore[no-any-return]


def _decoder(cls: type, version: int, *, sliced: bool) -> Any:
    writer = _DecoderSource(version, schema.of(cls).is_flexible(version), sliced=sliced)
    if writer.flexible:
        writer.line(f"tags = {MAX_UNKNOWN_TAGS}")
    result = writer.read_struct(cls)
    writer.line(f"return {result}, pos")
    return writer.build("decode(buf, pos, end, left)", cls)


def compile_encoder(cls: type, version: int) -> Encoder:
    """Return `encode(message, add, add_records)`.

    It hands out every piece in the order of the wire: records to `add_records`, all else to `add`.
    """
    return _encoder(cls, version, sliced=False)  # type: ignore[no-any-return]


def compile_sliced_encoder(cls: type, version: int) -> SlicedEncoder:
    """Return the encoder as a generator."""
    return _encoder(cls, version, sliced=True)  # type: ignore[no-any-return]


def _encoder(cls: type, version: int, *, sliced: bool) -> Any:
    writer = _EncoderSource(version, schema.of(cls).is_flexible(version), sliced=sliced)
    writer.write_struct(cls, "message")
    writer.flush()
    return writer.build("encode(message, add, add_records)", cls)


def minimum_size(item: Kind | type, version: int, flexible: bool) -> int:
    """Return the fewest bytes that one element of an array can take."""
    if isinstance(item, Kind):
        if item in FIXED:
            return FIXED[item][1]
        return 1 if flexible else 2 if item is Kind.STRING else 4
    size = 1 if flexible else 0
    for field in schema.of(item).plain_fields(version):
        if field.type.is_array:
            size += 1 if flexible else 4
        else:
            size += minimum_size(field.type.item, version, flexible)
    return size


class _Source:
    """Lines so far, the constants they name, and the run of fixed fields not yet written."""

    def __init__(self, version: int, flexible: bool, *, sliced: bool) -> None:
        self.version = version
        self.flexible = flexible
        self._sliced = sliced
        self._lines: list[str] = []
        self._depth = 1
        self._names = 0
        self._constants: dict[Any, str] = {}
        self._run: list[tuple[str, str]] = []
        self._globals: dict[str, Any] = {
            "new": object.__new__,
            "part_length": part_length,
            "Malformed": MalformedError,
            "TooMany": TooManyElementsError,
            "read_uvarint": read_uvarint,
            "skip_tagged_fields": skip_tagged_fields,
            "unpack_from": struct.unpack_from,
            "pack": struct.pack,
            "write_uvarint": write_uvarint,
            "SHORT": SHORT_UVARINTS,
        }
        if sliced:
            self.line(f"slice = {ELEMENTS_PER_SLICE}")
            self.line("if not slice: yield")  # a generator, even of a message without arrays

    def end_element(self) -> None:
        """Write the end of an element of an array: in a sliced function it may end a slice."""
        if self._sliced:
            self.line("slice -= 1")
            self.line(f"if slice <= 0: slice = {ELEMENTS_PER_SLICE}; yield")

    def end_numbers(self, count: str) -> None:
        """Write the end of `count` numbers of an array: as `end_element`."""
        self.line(f"slice -= {count} // {NUMBERS_PER_ELEMENT}")
        self.line(f"if slice <= 0: slice = {ELEMENTS_PER_SLICE}; yield")

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def indent(self) -> None:
        self._depth += 1

    def dedent(self) -> None:
        self._depth -= 1

    def local(self) -> str:
        """Return a local name that no other value has."""
        self._names += 1
        return f"v{self._names}"

    def constant(self, value: Any, key: Any = None) -> str:
        """Return the name under which the compiled function finds `value`."""
        key = value if key is None else key
        if key not in self._constants:
            name = f"C{len(self._constants)}"
            self._constants[key] = name
            self._globals[name] = value
        return self._constants[key]

    def struct_method(self, formats: str, method: str) -> str:
        """Return the name of a bound method of the `Struct` of these format characters."""
        bound = getattr(struct.Struct(">" + formats), method)
        return self.constant(bound, (formats, method))

    def absent(self, field: Field) -> str:
        """Return an expression for the value of a field that is not on the wire."""
        if field.default_factory is list:
            return "[]"
        if field.default_factory is not None:
            return f"{self.constant(field.default_factory)}()"
        return repr(field.default)

    def build(self, signature: str, cls: type) -> Any:
        """Compile what was written into a function."""
        text = "\n".join([f"def {signature}:", *(self._lines or ["    pass"])])
        code = compile(text, f"<{cls.__name__} version {self.version}>", "exec")
        exec(code, self._globals)  # noqa: S102  the source comes from declarations, not from peers
        return self._globals[signature.partition("(")[0]]


class _DecoderSource(_Source):
    """Writes a decoder; `buf`, `pos`, `end`, and the elements and unknown tagged fields that it may
    yet read, `left` and `tags`, are the locals it works on.
    """

    def flush(self) -> None:
        """Write the reading of the pending run of fixed fields."""
        if not self._run:
            return
        formats = "".join(char for _, char in self._run)
        targets = ", ".join(target for target, _ in self._run)
        comma = "," if len(self._run) == 1 else ""
        self.line(f"{targets}{comma} = {self.struct_method(formats, 'unpack_from')}(buf, pos)")
        self.line(f"pos += {struct.calcsize('>' + formats)}")
        self._run.clear()

    def read_struct(self, cls: type) -> str:
        """Read one structure; returns the local that holds it."""
        declared = schema.of(cls)
        tagged = declared.tagged_fields(self.version)
        values = {f.name: self.read(f) for f in declared.plain_fields(self.version)}
        self.flush()
        if self.flexible and tagged:
            values.update(self._read_tagged(tagged))
        elif self.flexible:
            self.line("if buf[pos]: pos, tags = skip_tagged_fields(buf, pos, end, tags)")
            self.line("else: pos += 1")
        result = self.local()
        self.line(f"{result} = new({self.constant(cls)})")
        for field in declared.fields:
            self.line(f"{result}.{field.name} = {values.get(field.name) or self.absent(field)}")
        return result

    def _read_tagged(self, tagged: dict[int, Field]) -> dict[str, str]:
        """Read the tagged section: known tags must fill their size, others are skipped."""
        values = {field.name: self.local() for field in tagged.values()}
        for field in tagged.values():
            self.line(f"{values[field.name]} = {self.absent(field)}")
        count, tag, stop = self._read_uvarint(), self.local(), self.local()
        self.line(f"if {count} > {len(tagged)}:")
        self.indent()
        self.line(f"tags -= {count} - {len(tagged)}")
        self.line("if tags < 0: raise Malformed('too many tagged fields')")
        self.dedent()
        self.line(f"for _ in range({count}):")
        self.indent()
        self._read_uvarint(tag)
        self._read_uvarint(stop)
        self.line(f"{stop} += pos")
        self.line(f"if {stop} > end: raise Malformed('tagged field exceeds the message')")
        keyword = "if"
        for number, field in tagged.items():
            self.line(f"{keyword} {tag} == {number}:")
            self.indent()
            value = self.read(field)
            self.flush()
            self.line(f"{values[field.name]} = {value}")
            self.line(f"if pos != {stop}: raise Malformed('tagged field of wrong size')")
            self.dedent()
            keyword = "elif"
        self.line(f"else: pos = {stop}")
        self.dedent()
        return values

    def read(self, field: Field) -> str:
        """Read one field; returns the local that holds it once the run is flushed."""
        nullable = field.nullable_in(self.version)
        if field.type.is_array:
            return self._read_array(field.type.item, nullable)
        return self._read_item(field.type.item, nullable)

    def _read_item(self, item: Kind | type, nullable: bool) -> str:
        if not isinstance(item, Kind):
            return self.read_struct(item)
        if item in FIXED:
            target = self.local()
            self._run.append((target, FIXED[item][0]))
            return target
        length = self._read_length("h" if item is Kind.STRING else "i")
        target, stop = self.local(), self.local()
        self._branch_on_null(length, target, nullable)
        self.line(f"{stop} = pos + {length}")
        limit = f" or {length} > {MAX_STRING}" if item is Kind.STRING and self.flexible else ""
        self.line(f"if {stop} > end{limit}: raise Malformed('length exceeds the message')")
        piece = f"buf[pos:{stop}]"
        if item is Kind.STRING:
            piece = f"str({piece}, 'utf-8')"
        elif item is Kind.BYTES:
            piece = f"bytes({piece})"
        self.line(f"{target} = {piece}")
        self.line(f"pos = {stop}")
        self.dedent()
        return target

    def _read_array(self, item: Kind | type, nullable: bool) -> str:
        count, target = self._read_length("i"), self.local()
        self._branch_on_null(count, target, nullable)
        least = minimum_size(item, self.version, self.flexible)
        self.line(f"if {count} * {least} > end - pos: raise Malformed('array exceeds the message')")
        self.line(f"left -= {count}")
        self.line("if left < 0: raise TooMany('too many elements')")
        if isinstance(item, Kind) and item in FIXED:
            char, size = FIXED[item]
            unpacked = f"unpack_from(f'>{{{count}}}{char}', buf, pos)"
            if not self._sliced:
                self.line(f"{target} = list({unpacked})")
                self.line(f"pos += {count} * {size}")
            else:
                self._read_numbers_in_slices(target, count, char, size)
        else:
            self.line(f"{target} = []")
            self.line(f"for _ in range({count}):")
            self.indent()
            element = self._read_item(item, nullable=False)
            self.line(f"{target}.append({element})")
            self.end_element()
            self.dedent()
        self.dedent()
        return target

    def _read_numbers_in_slices(self, target: str, count: str, char: str, size: int) -> None:
        self.line(f"{target} = []")
        self.line(f"while {count}:")
        self.indent()
        part = self.local()
        self.line(f"{part} = min({count}, {NUMBERS_AT_ONCE})")
        self.line(f"{target} += unpack_from(f'>{{{part}}}{char}', buf, pos)")
        self.line(f"pos += {part} * {size}")
        self.line(f"{count} -= {part}")
        self.end_numbers(part)
        self.dedent()

    def _branch_on_null(self, length: str, target: str, nullable: bool) -> None:
        """Open the branch for a length that is not null."""
        if nullable:
            self.line(f"if {length} < 0: {target} = None")
        else:
            self.line(f"if {length} < 0: raise Malformed('null where none is allowed')")
        self.line("else:")
        self.indent()

    def _read_length(self, char: str) -> str:
        """Read a length of either style; negative means null."""
        if not self.flexible:
            length = self.local()
            self._run.append((length, char))
            self.flush()
            return length
        length = self._read_uvarint()
        self.line(f"{length} -= 1")
        return length

    def _read_uvarint(self, target: str | None = None) -> str:
        self.flush()
        target = target or self.local()
        self.line(f"{target} = buf[pos]")
        self.line(f"if {target} < 128: pos += 1")
        self.line(f"else: {target}, pos = read_uvarint(buf, pos)")
        return target


class _EncoderSource(_Source):
    """Writes an encoder; pieces go to the function that `self._add` names."""

    def __init__(self, version: int, flexible: bool, *, sliced: bool) -> None:
        super().__init__(version, flexible, sliced=sliced)
        self._add = "add"

    def flush(self) -> None:
        """Write the packing of the pending run of fixed fields."""
        if not self._run:
            return
        formats = "".join(char for _, char in self._run)
        values = ", ".join(value for value, _ in self._run)
        self.line(f"{self._add}({self.struct_method(formats, 'pack')}({values}))")
        self._run.clear()

    def write_struct(self, cls: type, source: str) -> None:
        """Write one structure that the local `source` holds."""
        declared = schema.of(cls)
        for field in declared.plain_fields(self.version):
            self._write(field, source)
        tagged = declared.tagged_fields(self.version)
        if self.flexible and tagged:
            self._write_tagged(tagged, source)
        elif self.flexible:
            self._run.append(("0", "b"))

    def _write_tagged(self, tagged: dict[int, Field], source: str) -> None:
        """Write the tagged fields whose value is not the default, each with its size before it."""
        self.flush()
        outer, self._add = self._add, self.local()
        section, body, value = self.local(), self.local(), self.local()
        self.line(f"{section} = []")
        for number, field in tagged.items():
            self.line(f"{value} = {source}.{field.name}")
            self.line(f"if {self._differs(field, value)}:")
            self.indent()
            self.line(f"{body} = []")
            self.line(f"{self._add} = {body}.append")
            self._write(field, source)
            self.flush()
            self.line(f"{body} = b''.join({body})")
            prefix = write_uvarint(number)
            self.line(f"{section}.append({prefix!r} + write_uvarint(len({body})) + {body})")
            self.dedent()
        self._add = outer
        self.line(f"{outer}(write_uvarint(len({section})))")
        self.line(f"for {body} in {section}: {outer}({body})")

    def _differs(self, field: Field, value: str) -> str:
        """Return the condition that `value` is not the default of `field`."""
        item = field.type.item
        if field.type.is_array or isinstance(item, Kind):
            return f"{value} != {self.absent(field)}"
        # Field by field: comparing with a new default structure costs ten times as much.
        return " or ".join(
            self._differs(inner, f"{value}.{inner.name}") for inner in schema.of(item).fields
        )

    def _write(self, field: Field, source: str) -> None:
        expression = f"{source}.{field.name}"
        nullable = field.nullable_in(self.version)
        if field.type.is_array:
            self._write_array(field.type.item, expression, nullable)
        else:
            self._write_item(field.type.item, expression, nullable)

    def _write_item(self, item: Kind | type, expression: str, nullable: bool) -> None:
        if not isinstance(item, Kind):
            value = self.local()
            self.line(f"{value} = {expression}")
            self.write_struct(item, value)
            return
        if item in FIXED:
            self._run.append((expression, FIXED[item][0]))
            return
        value = self.local()
        self.line(f"{value} = {expression}")
        if not nullable:
            self._write_bytes(value, item)
            return
        run = list(self._run)  # goes with the length, in either branch
        self.line(f"if {value} is None:")
        self.indent()
        self._write_length(None, "h" if item is Kind.STRING else "i")
        self.dedent()
        self._run = run
        self.line("else:")
        self.indent()
        self._write_bytes(value, item)
        self.dedent()

    def _write_bytes(self, value: str, item: Kind) -> None:
        """Write the string, bytes or records in a local that is not None."""
        length = self.local()
        if item is Kind.STRING:
            self.line(f"{value} = {value}.encode()")
        measure = "part_length" if item is Kind.RECORDS else "len"
        self.line(f"{length} = {measure}({value})")
        if item is Kind.STRING and self.flexible:
            self.line(f"if {length} > {MAX_STRING}: raise ValueError('string too long')")
        self._write_length(length, "h" if item is Kind.STRING else "i")
        add = "add_records" if item is Kind.RECORDS else self._add
        self.line(f"{add}({value})")

    def _write_array(self, item: Kind | type, expression: str, nullable: bool) -> None:
        value, count = self.local(), self.local()
        self.line(f"{value} = {expression}")
        if nullable:
            self.line(f"if {value} is None: {value} = (); {count} = -1")
            self.line(f"else: {count} = len({value})")
        else:
            self.line(f"{count} = len({value})")
        self._write_length(count, "i")
        if isinstance(item, Kind) and item in FIXED:
            self._write_numbers(value, count, FIXED[item][0])
            return
        element = self.local()
        self.line(f"for {element} in {value}:")
        self.indent()
        if isinstance(item, Kind):
            self._write_item(item, element, nullable=False)
        else:
            self.write_struct(item, element)
        self.flush()
        self.end_element()
        self.dedent()

    def _write_numbers(self, value: str, count: str, char: str) -> None:
        if not self._sliced:
            self.line(f"if {value}: {self._add}(pack(f'>{{{count}}}{char}', *{value}))")
            return
        start, part = self.local(), self.local()
        self.line(f"for {start} in range(0, {count}, {NUMBERS_AT_ONCE}):")
        self.indent()
        self.line(f"{part} = {value}[{start}:{start} + {NUMBERS_AT_ONCE}]")
        self.line(f"{self._add}(pack(f'>{{len({part})}}{char}', *{part}))")
        self.end_numbers(f"len({part})")
        self.dedent()

    def _write_length(self, length: str | None, char: str) -> None:
        """Write the length in a local, None for that of null."""
        if self.flexible and length is None:
            self._run.append(("0", "b"))
            self.flush()
        elif self.flexible:
            self.flush()
            short = f"SHORT[{length} + 1] if {length} < 127"
            self.line(f"{self._add}({short} else write_uvarint({length} + 1))")
        else:
            self._run.append((length or "-1", char))
            self.flush()
