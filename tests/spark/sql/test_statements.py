"""How texts become statements (row S2)."""

import re

import pytest

from odradek_spark.sql import statements
from odradek_spark.sql.errors import SqlError
from odradek_spark.sql.statements import CreateRelation, Drop, Print, RunQuery


def test_text_is_cut_at_semicolons_outside_of_quotes_and_comments() -> None:
    text = """SELECT 'a;b', "c;", `d;` -- e;
    FROM t /* f; */ WHERE x = 'it''s;' ; ;
    SELECT /*+ COALESCE(1) */ 2; SELECT 3"""
    complete, rest = statements.split(text)
    assert [" ".join(one.split()) for one in complete] == [
        "SELECT 'a;b', \"c;\", `d;` FROM t WHERE x = 'it''s;'",
        "SELECT /*+ COALESCE(1) */ 2",
    ]
    assert rest.strip() == "SELECT 3"


@pytest.mark.parametrize("text", ["SELECT 'a;\n", "SELECT `a;", 'SELECT "a;', "SELECT 1 /* ;"])
def test_open_quotes_and_comments_wait_for_their_end(text: str) -> None:
    assert statements.split(text) == ([], text)


@pytest.mark.parametrize("text", ["", "  \n", "-- a comment;\n", "SELECT 1; -- done"])
def test_blanks_and_comments_are_no_rest(text: str) -> None:
    assert statements.split(text)[1] == ""


def test_create_of_the_walkthrough_is_read() -> None:
    text = (
        "CREATE TABLE users (registertime BIGINT, gender VARCHAR, regionid VARCHAR, userid VARCHAR)"
        " WITH (kafka_topic='users', value_format='JSON', key='userid')"
    )
    columns = "`registertime` BIGINT, `gender` STRING, `regionid` STRING, `userid` STRING"
    assert statements.parse(text) == CreateRelation(
        "TABLE", "users", columns, "users", "json", "userid"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "create stream if not exists `my clicks` (id VARCHAR PRIMARY KEY, "
            "address STRUCT<city VARCHAR, zips ARRAY<VARCHAR(STRING)>>, n DECIMAL(4, 2), "
            "c VARCHAR(10), raw BYTES) with (TOPIC = 'a-b', FORMAT = 'delimited')",
            CreateRelation(
                "STREAM",
                "my clicks",
                "`id` STRING, `address` STRUCT<city STRING, zips ARRAY<STRING>>, "
                "`n` DECIMAL(4, 2), `c` VARCHAR(10), `raw` BINARY",
                "a-b",
                "csv",
                "id",
                if_not_exists=True,
            ),
        ),
        (
            "CREATE OR REPLACE TABLE t WITH (\"topic\"='it''s')",
            CreateRelation("TABLE", "t", None, "it's", "json", None, or_replace=True),
        ),
        ("DROP STREAM IF EXISTS s", Drop("STREAM", "s", True)),
        ("PRINT 'a' FROM BEGINNING LIMIT 3", Print("a", True, 3)),
        ("PRINT a.b-c", Print("a.b-c", False, None)),
        ("SELECT 1 EMIT CHANGES LIMIT 5", RunQuery("SELECT 1", True, 5)),
        ("SELECT 1 LIMIT 5\nEMIT  CHANGES", RunQuery("SELECT 1", True, 5)),
        ("SELECT 'EMIT CHANGES'", RunQuery("SELECT 'EMIT CHANGES'", False, None)),
        (
            "SELECT * FROM (SELECT 1 LIMIT 2)",
            RunQuery("SELECT * FROM (SELECT 1 LIMIT 2)", False, None),
        ),
    ],
)
def test_statements_are_read(text: str, expected: statements.Statement) -> None:
    assert statements.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE TABLE t AS SELECT 1", "CREATE ... AS SELECT is for jobs"),
        ("CREATE TABLE t (a INT", "a parenthesis is not closed"),
        ("CREATE TABLE t (a) WITH (topic='t')", "expected a column's name and type"),
        ("CREATE TABLE t (a INT KEY, b INT KEY) WITH (topic='t')", "a table has one key"),
        ("CREATE TABLE t (a INT KEY) WITH (key='b')", "the key is both a and b"),
        ("CREATE TABLE t (a INT)", "expected after the columns: WITH"),
        ("CREATE TABLE t WITH (partitions=1)", "partitions is no property"),
        ("CREATE TABLE t WITH (topic='a', kafka_topic='b')", "topic is given twice"),
        ("CREATE TABLE t WITH (topic)", "expected name='value'"),
        ("DROP t", "expected: DROP TABLE"),
        ("SHOW nothing", "expected: SHOW"),
        ("PRINT", "expected: PRINT"),
        ("SET x", "expected: SET"),
        ("INSERT INTO t VALUES (1)", "INSERT is no statement of this shell"),
    ],
)
def test_what_is_no_statement_says_what_would_be(text: str, message: str) -> None:
    with pytest.raises(SqlError, match="^" + re.escape(message)) as caught:
        statements.parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("statement", ["PRINT 'a'", "SELECT 1", "SELECT 1 EMIT CHANGES"])
@pytest.mark.parametrize(
    "digits", ["2147483648", "9" * 5000], ids=["too large", "of too many digits"]
)
def test_a_limit_that_spark_does_not_take_is_refused(statement: str, digits: str) -> None:
    with pytest.raises(SqlError, match=r"^LIMIT is at most 2147483647$"):
        statements.parse(f"{statement} LIMIT {digits}")


@pytest.mark.parametrize(
    ("digits", "limit"), [("2147483647", 2147483647), ("00002147483647", 2147483647), ("000", 0)]
)
def test_the_largest_limit_is_that_of_spark(digits: str, limit: int) -> None:
    assert statements.parse(f"PRINT 'a' LIMIT {digits}") == Print("a", False, limit)
