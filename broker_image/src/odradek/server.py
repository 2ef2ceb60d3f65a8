"""The composition root: builds and owns the broker's parts, and starts and stops them in order.

Start: metrics and probes, ZooKeeper session, cluster id, log directories (locked, checked and
loaded), listeners, registration under `/brokers/ids`, controller candidate. A registered broker can
serve requests.
Stop, on a signal (`stop_signals`): leaderships move away (controlled shutdown), requests in
progress are answered, background work ends, logs are flushed and marked clean, and the session ends
last, so that no other broker takes this one for dead while it still writes.
Before the registration the broker has nothing to hand over: the start breaks off at once. Recovery
stops after the present batch, and marks and checkpoints say what they said before of logs that were
not opened.

Background tasks quarantine what an unexpected exception was about (see `quarantine`). One that ends
all the same ends the process with a traceback: a broker that runs without it would be worse.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Coroutine, Mapping
from functools import partial
from importlib.metadata import version
from random import Random
from typing import Any, TypeVar

from kazoo.exceptions import KazooException

from odradek import descriptors, log_output, long_lived, slices, stop_signals
from odradek.clock import wall_ms
from odradek.config import BrokerConfig, TopicConfig, within_descriptors
from odradek.controlled_shutdown import move_leaderships
from odradek.controller.loop import Controller
from odradek.coordination.partitioning import PartitionCount
from odradek.dynamic_config import PER_IP_OVERRIDES
from odradek.group.coordinator import GroupCoordinator
from odradek.handlers.context import Broker
from odradek.handlers.conversion_memory import ConversionMemory
from odradek.handlers.dispatch import Dispatcher
from odradek.health import Health
from odradek.log.directory import LogDirError
from odradek.log.manager import LogManager
from odradek.log.partition import checkpoints
from odradek.metrics import BrokerMetrics
from odradek.net.addresses import numbers_by_address
from odradek.net.broker_addresses import BrokerAddresses
from odradek.net.client import PeerClient
from odradek.net.connection_quotas import (
    UNLIMITED_RATE,
    AddressRates,
    ConnectionLimits,
    ConnectionQuotas,
)
from odradek.net.listener import Listener
from odradek.properties import INT_MAX, ConfigError, split_principals
from odradek.quarantine import Quarantines, Work
from odradek.quotas.client_quotas import ClientQuotas, Windows
from odradek.quotas.rates import Window
from odradek.quotas.store import QuotaStore
from odradek.replica.manager import ReplicaManager
from odradek.replica.metadata import MetadataCache
from odradek.replica.topic_configs import LOWERED, TopicConfigs
from odradek.security import zookeeper
from odradek.security.acl_watcher import AclWatcher
from odradek.security.authorizer import Authorizer
from odradek.security.credentials import ScramCredentials
from odradek.security.listeners import BrokerSecurity
from odradek.transaction.coordinator import TransactionCoordinator
from odradek.transaction.markers import ClusterLeaders
from odradek.transaction.verifier import TransactionVerifier
from odradek.values import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, BrokerId
from odradek.zk import admin, registration, znodes
from odradek.zk.producer_ids import ProducerIdManager
from odradek.zk.session import Session

# The whole stop takes at most 20 s of the 30 that a pod is given; these are the shares of the steps
# that wait for others. The first has room for a second attempt with Kafka's pause of 5 s before it.
CONTROLLED_SHUTDOWN_LIMIT_S = 15.0
LAST_ANSWERS_LIMIT_MS = 1500
RETRY_S = 1.0
# A start does not wait longer for name servers: the addresses are looked up again later.
BROKER_ADDRESSES_LIMIT_S = 2.0
NEVER_IDLE_MS = 2**31 - 1

T = TypeVar("T")

logger = logging.getLogger(__name__)


class StartError(Exception):
    """The broker cannot start; the text is one line for the person who started it."""


class StoppedEarlyError(Exception):
    """The broker was told to stop before it was registered."""


def run(config: BrokerConfig, log_level: str, label: str = "") -> int:
    """Run a broker until it is told to stop; the process's exit status.

    `label` stands in each line of its log, where several brokers write to one.
    """
    log_output.configure(log_level, label)
    try:
        return _run(config)
    finally:
        log_output.drop_rest()


def _run(config: BrokerConfig) -> int:
    descriptors.raise_limit()
    config = _within_descriptors(config)
    # Modules and their code last as long as the process: full collections need not look at them.
    long_lived.freeze()
    try:
        server = Server(config)
    except ConfigError as error:
        print(f"odradek: {error}", file=sys.stderr)  # noqa: T201 the one line the user reads
        return 2
    try:
        return asyncio.run(_run_to_its_end(server))
    except StartError as error:
        print(f"odradek: {error}", file=sys.stderr)  # noqa: T201 the one line the user reads
        return 1
    except BaseExceptionGroup as failures:
        logger.critical("the broker fails", exc_info=failures)
        return 1


async def _run_to_its_end(server: Server) -> int:
    try:
        return await server.run()
    finally:
        stop_signals.hold_back()


def _within_descriptors(config: BrokerConfig) -> BrokerConfig:
    most = descriptors.budget().connections
    if most < config.max_connections < INT_MAX:
        logger.warning(LOWERED, config.max_connections, most)
    return within_descriptors(config, most)


def _limits(config: BrokerConfig, of_ip: Mapping[str, int]) -> ConnectionLimits:
    idle = config.connections_max_idle_ms
    return ConnectionLimits(
        max_frame_bytes=config.socket_request_max_bytes,
        max_connections=config.max_connections,
        max_connections_per_ip=config.max_connections_per_ip,
        max_idle_ms=idle if idle > 0 else NEVER_IDLE_MS,
        max_connections_of_ip=of_ip,
        max_creation_rate=config.max_connection_creation_rate,
        max_queued_bytes=config.queued_max_request_bytes,
        max_answer_bytes=config.queued_max_response_bytes,
        socket_send_bytes=config.socket_send_buffer_bytes,
        socket_receive_bytes=config.socket_receive_buffer_bytes,
    )


def _windows(config: BrokerConfig) -> Windows:
    return Windows(
        Window(config.quota_window_num, config.quota_window_size_seconds * 1000),
        Window(
            config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000
        ),
    )


class Server:
    """One broker process. Raises ConfigError for key stores that cannot be used."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._stop = asyncio.Event()
        self._failed = False
        self._is_replaced = False
        self._failed_directories = asyncio.Event()
        self._serving = False
        self._quarantines = Quarantines()
        self._metrics = BrokerMetrics(self._quarantines)
        self._health = Health(self._why_not_ready)
        self._metadata = MetadataCache()
        self._broker_addresses = BrokerAddresses(self._broker_hosts)
        self._listeners: dict[str, Listener] = {}
        self._session = Session(
            config.zookeeper_connect,
            config.zookeeper_session_timeout_ms,
            config.zookeeper_connection_timeout_ms,
            access=zookeeper.access(config.zookeeper_security),
        )
        self._credentials = ScramCredentials(self._session)
        self._security = BrokerSecurity(config, self._credentials.find)
        self._has_session = self._has_logs = False

    async def run(self) -> int:
        """Start, serve and stop; return the exit status.

        Raises StartError, or an exception group if a task failed.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._note_unexpected)
        for number in stop_signals.numbers():
            loop.add_signal_handler(number, self._stop.set)
        async with contextlib.AsyncExitStack() as cleanup:
            self._serve_metrics(cleanup)
            try:
                await self._start(cleanup)
            except StoppedEarlyError:
                await self._break_off()
                what = "was registered" if self._has_session else "had a session in ZooKeeper"
                logger.info("broker %d was stopped before it %s", self._config.broker_id, what)
                return 0
            except StartError:
                await self._break_off()
                raise
            await self._serve_until_stopped()
            await self._replicas.checkpoint_high_watermarks()
            await asyncio.to_thread(self._logs.close)
        logger.info("broker %d stopped", self._config.broker_id)
        return int(self._failed)

    def _note_unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Count what no task could handle: an exception of a callback, or of a forgotten task."""
        error = context.get("exception")
        if error is None:
            loop.default_exception_handler(context)
        else:
            self._quarantines.note(Work.CALLBACK, "event loop", error, context["message"])

    # --- start --------------------------------------------------------------------------------

    async def _start(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Start everything but the background work. Raises StartError and StoppedEarlyError."""
        try:
            await self._unless_stopped(self._prepare(cleanup))
            await self._start_serving(cleanup)
        except KazooException as failure:
            raise StartError(f"failed to start: ZooKeeper: {failure!r}") from failure
        except znodes.ZnodeError as error:
            raise StartError(f"failed to start: {error}") from error

    def _serve_metrics(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Serve metrics and probes from the beginning: loading the logs may take minutes."""
        host, port = self._config.metrics_host, self._config.metrics_port
        if not port:
            return
        try:
            cleanup.callback(self._metrics.serve(port, self._health, host))
        except OSError as error:
            raise StartError(f"cannot serve metrics on {host}:{port}: {error}") from error
        heartbeat = asyncio.create_task(self._health.run(), name="heartbeat")
        cleanup.callback(heartbeat.cancel)

    def _why_not_ready(self) -> str:
        if not self._serving:
            return "the broker starts or stops"
        if self._registration.epoch == -1:
            return "the broker is not registered in ZooKeeper"
        return ""

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns. Raises StoppedEarlyError if the broker is told to stop first;
        then `work` was cancelled, and has ended.
        """
        if self._stop.is_set():
            work.close()
            raise StoppedEarlyError
        working = asyncio.create_task(work, name="start")
        stopping = asyncio.create_task(self._stop.wait(), name="stop during the start")
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if working.done():
            return working.result()
        working.cancel()
        # Also an error of the last moment is nobody's concern any more.
        await asyncio.gather(working, return_exceptions=True)
        raise StoppedEarlyError

    async def _prepare(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Make everything that the broker needs before others may know of it."""
        await self._open_session(cleanup)
        cluster_id = await self._cluster_id()
        await self._load_logs(cluster_id)
        self._quotas = await self._connection_quotas()
        self._authorizer = await self._build_authorizer()
        self._warn_of_lockout()
        self._build(cluster_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BROKER_ADDRESSES_LIMIT_S):
                await self._broker_addresses.refresh()

    async def _break_off(self) -> None:
        """End what the start began, before anybody was told of this broker."""
        for listener in self._listeners.values():
            await listener.close(0)
        if self._has_logs:
            await asyncio.to_thread(self._logs.close)

    async def _open_session(self, cleanup: contextlib.AsyncExitStack) -> None:
        try:
            await self._session.start()
        except ConnectionError as error:
            raise StartError(str(error)) from error
        self._has_session = True
        cleanup.push_async_callback(self._session.close)

    async def _cluster_id(self) -> str:
        try:
            await registration.create_persistent_paths(self._session)
            return await registration.ensure_cluster_id(self._session, self._remembered_cluster())
        except (registration.ForeignClusterError, znodes.ZnodeError, LogDirError) as error:
            raise StartError(str(error)) from error
        except KazooException as failure:
            raise StartError(f"failed to read the cluster id: ZooKeeper: {failure!r}") from failure

    def _remembered_cluster(self) -> str | None:
        """Return the cluster id in the log directories, None if they are new."""
        for path in self._config.log_dirs:
            try:
                meta = checkpoints.read_meta(os.path.join(path, checkpoints.META_PROPERTIES))
            except (OSError, checkpoints.CorruptCheckpointError):
                continue  # loading the directories reports it
            if meta is not None:
                return meta.cluster_id
        return None

    async def _load_logs(self, cluster_id: str) -> None:
        loop = asyncio.get_running_loop()
        loading = True

        def tell_loop(path: str, error: OSError) -> None:
            # Nothing uses logs while they are loaded; `load` fails if no directory is left.
            if not loading:
                loop.call_soon_threadsafe(self._directory_failed, path)

        self._topic_configs = TopicConfigs(
            self._config, self._session, self._quarantines, descriptors.budget().connections
        )
        self._address_rates = AddressRates()
        self._client_quotas = ClientQuotas(_windows(self._config))
        self._quota_store = QuotaStore(
            self._session, self._client_quotas, self._address_rates.limit
        )
        self._topic_configs.on_client_change(self._quota_store.changed)
        await self._topic_configs.start()
        await self._quota_store.load()
        self._logs = LogManager(
            self._topic_configs.broker.effective,
            cluster_id,
            self._topic_configs,
            on_dir_failure=tell_loop,
            quarantines=self._quarantines,
        )
        self._has_logs = True
        began = time.monotonic()
        working = asyncio.create_task(asyncio.to_thread(self._logs.load), name="load")
        try:
            with slices.collector_paused():
                await asyncio.shield(working)
        except LogDirError as error:
            raise StartError(str(error)) from error
        except asyncio.CancelledError:
            self._logs.stop_loading()
            await asyncio.gather(working, return_exceptions=True)
            raise
        loading = False
        long_lived.freeze_loaded()
        logger.info(
            "loaded %d partitions in %.1f s", len(self._logs.logs()), time.monotonic() - began
        )

    async def _build_authorizer(self) -> Authorizer | None:
        config = self._config
        if not config.authorizer_class_name:
            if config.super_users:
                logger.warning("super.users has no effect without authorizer.class.name")
            return None
        watcher = AclWatcher(
            self._session, config.allow_everyone_if_no_acl_found, quarantines=self._quarantines
        )
        authorizer = Authorizer(watcher, split_principals(config.super_users))
        try:
            await watcher.start()
        except (KazooException, ConnectionError) as failure:
            raise StartError(f"failed to read the ACLs: ZooKeeper: {failure!r}") from failure
        return authorizer

    def _warn_of_lockout(self) -> None:
        """Say if this broker is somebody whom brokers refuse: nothing would work then."""
        listener = self._config.inter_broker_listener_name
        try:
            principal = self._security.own_principal()
        except ValueError as error:
            logger.warning("brokers refuse each other's connections on %s: %s", listener, error)
            return
        if self._authorizer is not None and self._authorizer.locks_out(principal):
            logger.warning(
                "brokers are %s on listener %s, which super.users does not contain and no ACL "
                "allows ClusterAction: they refuse each other's requests",
                principal,
                listener,
            )

    async def _connection_quotas(self) -> ConnectionQuotas:
        config = self._topic_configs.broker.effective
        try:
            of_ip = await numbers_by_address(config.max_connections_per_ip_overrides)
        except OSError as error:
            raise StartError(f"{PER_IP_OVERRIDES}: {error}") from error
        return ConnectionQuotas(_limits(config, of_ip), self._address_rates)

    def _build(self, cluster_id: str) -> None:
        config = self._config
        effective = self._topic_configs.broker.effective
        self._replicas = ReplicaManager(
            effective,
            self._logs,
            self._session,
            self._metadata,
            self._connect,
            self._topic_configs,
            quarantines=self._quarantines,
            on_replica_failed=self._failed_directories.set,
        )
        self._registration = registration.Registration(
            self._session, self._registration_now, self._quarantines
        )
        self._controller = Controller(
            effective,
            self._session,
            lambda host, port: PeerClient(
                host,
                port,
                f"broker-{config.broker_id}-controller",
                security=self._security.of_peers(),
            ),
            self._registration,
            quarantines=self._quarantines,
        )
        self._registration.on_registered(self._topic_configs.load)
        self._registration.on_registered(self._quota_store.load)
        self._registration.on_registered(self._credentials.forget_all)
        self._topic_configs.on_user_change(self._credentials.forget)
        self._topic_configs.on_change(self._topic_configs_changed)
        self._topic_configs.on_broker_change(self._broker_config_changed)
        session = self._session
        self._groups = GroupCoordinator(
            config,
            self._replicas,
            PartitionCount(session, OFFSETS_TOPIC),
            self._replicas.role_confirmed,
            quarantines=self._quarantines,
        )
        producer_ids = ProducerIdManager(self._session, config.broker_id)
        leaders = ClusterLeaders(self._metadata, session)
        self._transactions = TransactionCoordinator(
            config,
            self._replicas,
            PartitionCount(session, TRANSACTIONS_TOPIC),
            producer_ids,
            leaders,
            partial(self._connect, purpose="transactions", reuse_frames=False),
            self._replicas.leadership_confirmed,
            self._quarantines,
        )
        self._verifier = TransactionVerifier(
            config.broker_id,
            self._transactions,
            leaders,
            partial(self._connect, purpose="verification", reuse_frames=False),
            self._transactions.spawn,
        )
        quotas = self._quotas
        broker = Broker(
            config=config,
            cluster_id=cluster_id,
            replicas=self._replicas,
            metadata=self._metadata,
            session=self._session,
            controller=self._controller,
            groups=self._groups,
            registration=self._registration,
            transactions=self._transactions,
            verifier=self._verifier,
            producer_ids=producer_ids,
            metrics=self._metrics,
            random=Random(),  # noqa: S311 (spreads replicas, no secrets)
            authorizer=self._authorizer,
            answers=quotas.answers,
            conversions=ConversionMemory(config.conversion_max_bytes),
            follower_conversions=ConversionMemory(config.conversion_max_bytes),
            quotas=self._client_quotas,
        )
        shared = len(config.listeners) == 1
        for endpoint in config.listeners:
            is_inter_broker = endpoint.name == config.inter_broker_listener_name
            self._listeners[endpoint.name] = Listener(
                endpoint.host,
                endpoint.port,
                quotas,
                Dispatcher(broker, endpoint.name).dispatch,
                # Clients must not block connections between brokers.
                protected=is_inter_broker and not shared,
                is_broker=self._broker_addresses.__contains__ if shared else None,
                quarantines=self._quarantines,
                secure=partial(self._security.transport, endpoint.name),
                guard=self._security.guard(endpoint.name),
                creation_rate=config.listener_creation_rates.get(endpoint.name, UNLIMITED_RATE),
            )
        self._metrics.watch_security(self._security)
        self._metrics.watch(
            {
                "broker_id": str(config.broker_id),
                "cluster_id": cluster_id,
                "version": version("odradek"),
            },
            self._replicas,
            self._controller,
            self._groups,
            self._transactions,
            self._listeners,
            quotas,
            self._authorizer,
            self._client_quotas,
        )

    def _topic_configs_changed(self, changed: Mapping[str, TopicConfig]) -> None:
        self._logs.update_topic_configs(changed)
        for topic in changed:
            self._controller.topic_config_changed(topic)

    async def _broker_config_changed(self, config: BrokerConfig) -> None:
        """Apply the dynamic settings that parts of the broker keep; the others look theirs up."""
        self._logs.reconfigure(config)
        self._replicas.resize_fetchers(config.num_replica_fetchers)
        self._controller.default_unclean_changed(config.unclean_leader_election_enable)
        try:
            of_ip = await numbers_by_address(config.max_connections_per_ip_overrides)
        except OSError as error:
            logger.error("keeping the former %s: %s", PER_IP_OVERRIDES, error)
            of_ip = dict(self._quotas.limits.max_connections_of_ip)
        self._quotas.change_limits(_limits(config, of_ip))

    def _connect(
        self, broker_id: int, *, purpose: str = "fetcher", reuse_frames: bool = True
    ) -> PeerClient | None:
        address = self._metadata.endpoint(broker_id, self._config.inter_broker_listener_name)
        if address is None:
            return None
        return PeerClient(
            *address,
            f"broker-{self._config.broker_id}-{purpose}",
            security=self._security.of_peers(),
            reuse_frames=reuse_frames,
        )

    async def _broker_hosts(self) -> set[str]:
        """Return the hosts of the live brokers, as the controller told them."""
        listener = self._config.inter_broker_listener_name
        if self._metadata.initialized:
            return self._metadata.hosts(listener)
        # The controller must get through to tell.
        try:
            registered = await admin.read_brokers(self._session)
        except (KazooException, znodes.ZnodeError) as failure:
            logger.warning("failed to read the brokers' addresses: %r; retrying", failure)
            return set()
        return {
            endpoint.host
            for broker in registered.values()
            for endpoint in broker.endpoints
            if endpoint.listener == listener
        }

    def _registration_now(self) -> znodes.BrokerRegistration:
        """Return the present registration payload, with the bound port for port 0."""
        return znodes.BrokerRegistration(
            broker_id=BrokerId(self._config.broker_id),
            endpoints=tuple(
                znodes.BrokerEndpoint(
                    one.name,
                    one.host or os.uname().nodename,
                    one.port or self._listeners[one.name].port,
                    one.protocol,
                )
                for one in self._config.advertised_listeners
            ),
            rack=self._config.broker_rack,
            timestamp_ms=wall_ms(),
        )

    async def _start_serving(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Listen, register and look for a controller. Raises StoppedEarlyError."""
        for name, listener in self._listeners.items():
            try:
                await listener.start()
            except OSError as error:
                raise StartError(f"cannot listen on {name}: {error}") from error
            cleanup.push_async_callback(listener.close, 0)
        await self._register()
        await self._controller.start()

    async def _register(self) -> None:
        while True:
            try:
                await self._unless_stopped(self._registration.start())
                return await asyncio.to_thread(self._logs.record_owner)
            except LogDirError as error:
                raise StartError(str(error)) from error
            except registration.DuplicateBrokerError as error:
                if not await self._unless_stopped(
                    registration.registration_disappears(self._session, self._config.broker_id)
                ):
                    raise StartError(str(error)) from error

    async def _serve_until_stopped(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self._replicas.run(), name="replicas"),
                tasks.create_task(self._logs.run(), name="logs"),
                tasks.create_task(self._groups.run(), name="groups"),
                tasks.create_task(self._transactions.run(), name="transactions"),
                tasks.create_task(self._topic_configs.run(), name="topic settings"),
                tasks.create_task(self._stay_registered(), name="registration"),
                tasks.create_task(
                    self._quarantines.keep_running(
                        Work.ADDRESSES, "brokers", self._broker_addresses.run
                    ),
                    name="broker addresses",
                ),
                tasks.create_task(self._tell_of_failed_directories(), name="failed directories"),
                tasks.create_task(self._security.run(), name="security"),
            ]
            if self._authorizer is not None:
                watching = self._authorizer.watcher.run()
                background.append(tasks.create_task(watching, name="ACLs"))
            # Ends once the listener is closed; an earlier end is a failure to accept.
            for listener in self._listeners.values():
                tasks.create_task(listener.wait_closed(), name="listener")
            self._serving = True
            logger.info("broker %d is up", self._config.broker_id)
            await self._stop.wait()
            self._serving = False
            await self._stop_serving()
            for task in background:
                task.cancel()

    async def _stay_registered(self) -> None:
        """Register after each lost session; stop if another broker has taken this one's id."""
        try:
            await self._registration.run()
        except registration.DuplicateBrokerError as error:
            logger.critical("%s; stopping", error)
            self._failed = True
            self._is_replaced = True
            self._stop.set()

    # --- stop ---------------------------------------------------------------------------------

    def _directory_failed(self, path: str) -> None:
        """Continue without a failed log directory, or stop if it was the last."""
        self._replicas.directory_failed(path)
        self._failed_directories.set()
        if not self._logs.online_directories:
            logger.critical("no log directory is left; stopping")
            self._failed = True
            self._stop.set()

    async def _tell_of_failed_directories(self) -> None:
        """Notify the controller of failed log directories and replicas (KIP-112)."""
        while True:
            await self._failed_directories.wait()
            self._failed_directories.clear()
            try:
                await self._session.create(
                    f"{znodes.LOG_DIR_EVENTS_PATH}/{znodes.LOG_DIR_EVENT_PREFIX}",
                    znodes.encode_log_dir_event(self._config.broker_id),
                    sequence=True,
                )
            except KazooException as failure:
                logger.warning("failed to announce a failed log directory: %r; retrying", failure)
                self._failed_directories.set()
                await asyncio.sleep(RETRY_S)
            except Exception as failure:
                pause_s = self._quarantines.put(Work.NOTICE, "log directories", failure)
                self._failed_directories.set()
                await asyncio.sleep(pause_s)
            else:
                self._quarantines.release(Work.NOTICE, "log directories")

    async def _stop_serving(self) -> None:
        logger.info("broker %d is stopping", self._config.broker_id)
        # The leaderships of a broker that is replaced are those of the other one.
        if self._config.controlled_shutdown_enable and not self._is_replaced:
            try:
                async with asyncio.timeout(CONTROLLED_SHUTDOWN_LIMIT_S):
                    await move_leaderships(
                        self._config,
                        self._controller,
                        lambda: self._connect(self._metadata.controller_id),
                    )
            except TimeoutError:
                logger.warning("failed to move all leaderships in time; stopping")
        self._groups.close()
        await self._verifier.close()
        await self._transactions.close()
        self._replicas.close()
        self._metadata.close()
        async with asyncio.TaskGroup() as closing:
            for listener in self._listeners.values():
                closing.create_task(listener.close(LAST_ANSWERS_LIMIT_MS))
        await self._controller.stop()
