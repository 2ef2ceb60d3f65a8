"""Describe- and AlterUserScramCredentials (KIP-554): SCRAM credentials of users, in /config/users.

They are entries beside the quotas of a user, which stay. The controller alone changes them. Every
broker learns of a change through a notification (see `security.credentials`).
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable
from urllib.parse import unquote

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from odradek import slices
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.sasl import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialInfo,
    ScramCredentialUpsertion,
)
from odradek.security import credentials, scram
from odradek.zk import admin, znodes
from odradek.zk.failures import meaning
from odradek.zk.operations import TransactionFailedError
from odradek.zk.payload import fits_an_answer

logger = logging.getLogger(__name__)

Change = ScramCredentialDeletion | ScramCredentialUpsertion

_MECHANISMS = {number: name for name, number in scram.NUMBERS.items()}
_USERS_PATH = f"{znodes.CONFIG_PATH}/users"


async def describe_user_scram_credentials(
    broker: Broker, request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """Return mechanisms and iterations of the users; of all that have any, if none is named."""
    names = Counter[str]()
    for users in slices.cut(request.users or ()):
        names.update(one.name for one in users)
        await slices.pause()
    results: list[DescribeUserScramCredentialsResult] = []
    try:
        if names:
            for few in slices.cut(names.items()):
                results += [await _described(broker, name, count) for name, count in few]
                await slices.pause()
        else:
            results = await _all_described(broker)
    except KafkaError as error:
        return DescribeUserScramCredentialsResponse(
            error_code=error.code, error_message=error.message
        )
    return DescribeUserScramCredentialsResponse(results=results)


async def _described(broker: Broker, name: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        error = KafkaError(
            ErrorCode.DUPLICATE_RESOURCE,
            "Cannot describe SCRAM credentials for the same user twice in a single request: "
            f"{name}",
        )
    elif infos := _infos(await _entries(broker, credentials.sanitized(name))):
        return DescribeUserScramCredentialsResult(user=name, credential_infos=infos)
    else:
        error = KafkaError(
            ErrorCode.RESOURCE_NOT_FOUND,
            f"Attempt to describe a user credential that does not exist: {name}",
        )
    return DescribeUserScramCredentialsResult(
        user=name, error_code=error.code, error_message=error.message
    )


async def _all_described(broker: Broker) -> list[DescribeUserScramCredentialsResult]:
    try:
        found = await broker.session.children(_USERS_PATH)
    except NoNodeError:
        found = []
    except KazooException as failure:
        raise _unavailable(failure) from failure
    results: list[DescribeUserScramCredentialsResult] = []
    for names in slices.cut(sorted(found), slices.STEPS_PER_SLICE):
        for name in names:
            user = unquote(name)
            if not fits_an_answer(user):
                logger.error("leaving out a user whose name no answer can hold: %.80r", user)
            elif infos := _infos(await _entries(broker, name)):
                results.append(
                    DescribeUserScramCredentialsResult(user=user, credential_infos=infos)
                )
    return results


async def _entries(broker: Broker, name: str) -> dict[str, str]:
    """Return the entries of a user by the name of its znode. Raises KafkaError."""
    return (await _read(broker, name))[0]


async def _read(broker: Broker, name: str) -> tuple[dict[str, str], int | None]:
    if not credentials.is_znode_name(name):
        return {}, None
    path = znodes.config_path("users", name)
    try:
        found = (await broker.session.get_all([path])).get(path)
        if found is None:
            return {}, None
        return znodes.decode_config(path, found[0]), found[1].version
    except znodes.ZnodeError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
    except KazooException as failure:
        raise _unavailable(failure) from failure


def _infos(entries: dict[str, str]) -> list[ScramCredentialInfo]:
    return [
        ScramCredentialInfo(mechanism=scram.NUMBERS[name], iterations=one.iterations)
        for name, one in credentials.decode(_USERS_PATH, entries).items()
    ]


def _unavailable(failure: KazooException) -> KafkaError:
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper: {meaning(failure)}")


async def alter_user_scram_credentials(
    broker: Broker, request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    """Apply all changes of each user, or none of them; return one outcome per user."""
    of_user: dict[str, list[Change]] = defaultdict(list)
    wished: Iterable[Change] = itertools.chain(request.upsertions, request.deletions)
    for changes in slices.cut(wished):
        for change in changes:
            of_user[change.name].append(change)
        await slices.pause()
    results: list[AlterUserScramCredentialsResult] = []
    for number, (user, wanted) in enumerate(of_user.items()):
        if number % slices.LONG_NAMES_PER_SLICE == 0:
            await slices.pause()
        try:
            if not broker.controller.active:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "This is not the controller.")
            _check(user, wanted)
            await _apply(broker, user, wanted)
        except KafkaError as error:
            results.append(
                AlterUserScramCredentialsResult(
                    user=user, error_code=error.code, error_message=error.message
                )
            )
        else:
            results.append(AlterUserScramCredentialsResult(user=user))
    return AlterUserScramCredentialsResponse(results=results)


def _check(user: str, wanted: list[Change]) -> None:
    """Raise KafkaError for changes that Kafka's ZkAdminManager refuses."""
    if not user:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if not credentials.is_znode_name(credentials.sanitized(user)):
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "ZooKeeper cannot keep this username")
    for change in wanted:
        if change.mechanism not in _MECHANISMS:
            raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if isinstance(change, ScramCredentialUpsertion):
            if change.iterations < scram.MIN_ITERATIONS:
                raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
            if change.iterations > scram.MAX_ITERATIONS:
                raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if len({change.mechanism for change in wanted}) < len(wanted):
        raise KafkaError(
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        )


async def _apply(broker: Broker, user: str, wanted: list[Change]) -> None:
    name = credentials.sanitized(user)
    while True:
        entries, version = await _read(broker, name)
        for change in wanted:
            mechanism = _MECHANISMS[change.mechanism]
            if isinstance(change, ScramCredentialUpsertion):
                entries[mechanism] = scram.credential(
                    mechanism, change.salted_password, change.salt, change.iterations
                ).encoded()
            elif entries.pop(mechanism, None) is None:
                raise KafkaError(
                    ErrorCode.RESOURCE_NOT_FOUND,
                    "Attempt to delete a user credential that does not exist",
                )
        try:
            await broker.session.multi(admin.change_config("users", name, entries, version))
        except TransactionFailedError as failure:
            overtaken = isinstance(failure.error, BadVersionError | NodeExistsError)
            removed = isinstance(failure.error, NoNodeError) and version is not None
            if failure.index == 0 and (overtaken or removed):
                continue
            raise _unavailable(failure.error) from failure
        except KazooException as failure:
            raise _unavailable(failure) from failure
        logger.info("SCRAM credentials of user %s changed", user)
        return
