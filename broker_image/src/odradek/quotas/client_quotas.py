"""The quotas of a broker: the limits that are set, and what each client has taken of them.

A client is a user with a client id. Its sensors are looked up once and remembered; a change of any
limit forgets what was looked up, but not what was taken. Sensors that were idle for an hour are
dropped, as in Kafka. Anybody can send any client id, so there is a bound besides: beyond
MOST_SENSORS the ones that were idle for longest go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from odradek.clock import monotonic_ms
from odradek.quotas.entities import Limits, QuotaEntity, QuotaKey, Share, find, sanitize
from odradek.quotas.rates import BucketSensor, RateSensor, Window

MOST_SENSORS: Final = 20_000
IDLE_MS: Final = 3_600_000
_LOOK_MS: Final = 600_000
# Of sensors that are too many, so many go at once that this is not done for every new client.
_DROPPED_SHARE: Final = 10
# Longer names are remembered by their digest.
_LONGEST_NAME: Final = 256

Sensor = RateSensor | BucketSensor


class ClientSensors(NamedTuple):
    """The sensors of one client; None where nothing limits it."""

    produce: RateSensor | None
    fetch: RateSensor | None
    request: RateSensor | None
    mutation: BucketSensor | None


class Windows(NamedTuple):
    """The windows of rates (`quota.window.*`) and of buckets (`controller.quota.window.*`)."""

    rates: Window = Window()
    mutations: Window = Window()


class Throttled:
    """The requests that one kind of quota throttled, and for how long in all."""

    __slots__ = ("count", "total_ms")

    def __init__(self) -> None:
        self.count = 0
        self.total_ms = 0


class ClientQuotas:
    """The quotas of one broker. Used from one event loop only."""

    def __init__(
        self, windows: Windows | None = None, clock_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        self.clock_ms = clock_ms
        self.enforced = False  # a plain field: every request looks at it
        self.throttled = {key: Throttled() for key in QuotaKey}
        self._windows = windows or Windows()
        self._limits: dict[QuotaKey, dict[QuotaEntity, float]] = {key: {} for key in QuotaKey}
        self._clients: dict[tuple[str, str], ClientSensors] = {}
        self._sensors: dict[tuple[QuotaKey, Share], Sensor] = {}
        self._looked_ms = clock_ms()

    @property
    def sensor_count(self) -> int:
        """Return how many sensors there are."""
        return len(self._sensors)

    def replace(self, quotas: Mapping[QuotaEntity, Limits]) -> None:
        """Set the limits of all entities; others have none any more."""
        self._limits = {key: {} for key in QuotaKey}
        for entity, limits in quotas.items():
            self._set(entity, limits)
        self._forget_clients()

    def change(self, entity: QuotaEntity, limits: Limits) -> None:
        """Set the limits of one entity; it has none besides."""
        self._set(entity, limits)
        self._forget_clients()

    def _set(self, entity: QuotaEntity, limits: Limits) -> None:
        for key, of_entities in self._limits.items():
            of_entities.pop(entity, None)
            if key in limits:
                of_entities[entity] = limits[key]

    def _forget_clients(self) -> None:
        self._clients.clear()
        self.enforced = any(self._limits.values())
        if not self.enforced:
            self._sensors.clear()

    def sensors(self, user: str, client_id: str | None) -> ClientSensors:
        """Return the sensors of a client."""
        client = user, client_id or ""
        found = self._clients.get(client)
        if found is None:
            found = self._look_up(*client)
        return found

    def _look_up(self, user: str, client_id: str) -> ClientSensors:
        now_ms = self.clock_ms()
        self._drop_idle(now_ms)
        names = sanitize(user), sanitize(client_id)
        produce, fetch, request, mutation = (self._sensor(key, names, now_ms) for key in QuotaKey)
        assert not isinstance(produce, BucketSensor)
        assert not isinstance(fetch, BucketSensor)
        assert not isinstance(request, BucketSensor)
        assert not isinstance(mutation, RateSensor)
        found = ClientSensors(produce, fetch, request, mutation)
        if len(client_id) <= _LONGEST_NAME:
            self._clients[user, client_id] = found
        return found

    def _sensor(self, key: QuotaKey, names: tuple[str, str], now_ms: int) -> Sensor | None:
        matched = find(self._limits[key], *names)
        if matched is None:
            return None
        share, limit = matched
        share = Share(_short(share.user), _short(share.client_id))
        sensor = self._sensors.get((key, share))
        if sensor is None:
            sensor = self._sensors[key, share] = self._new_sensor(key, limit, now_ms)
        sensor.limit = limit
        return sensor

    def _new_sensor(self, key: QuotaKey, limit: float, now_ms: int) -> Sensor:
        if key is QuotaKey.CONTROLLER_MUTATION:
            return BucketSensor(self._windows.mutations, limit, now_ms)
        window = self._windows.rates
        if key is QuotaKey.REQUEST:
            # As Kafka's ClientRequestQuotaManager, which bounds only these.
            sensor = RateSensor(window, limit, longest_ms=window.size_ms)
        else:
            sensor = RateSensor(window, limit)
        sensor.used_ms = now_ms
        return sensor

    def _drop_idle(self, now_ms: int) -> None:
        """Drop sensors that nobody uses, before a client gets new ones."""
        if len(self._clients) >= MOST_SENSORS:
            self._clients.clear()
        if len(self._sensors) < MOST_SENSORS and now_ms - self._looked_ms < _LOOK_MS:
            return
        self._looked_ms = now_ms
        kept = {key: one for key, one in self._sensors.items() if now_ms - one.used_ms < IDLE_MS}
        if len(kept) >= MOST_SENSORS:
            oldest = sorted(kept, key=lambda key: kept[key].used_ms)
            for key in oldest[: len(kept) // _DROPPED_SHARE]:
                del kept[key]
        if len(kept) < len(self._sensors):
            self._sensors = kept
            self._clients.clear()

    def note_throttle(self, key: QuotaKey, throttle_ms: int) -> None:
        """Count a request that is throttled."""
        throttled = self.throttled[key]
        throttled.count += 1
        throttled.total_ms += throttle_ms


def _short(name: str | None) -> str | None:
    if name is None or len(name) <= _LONGEST_NAME:
        return name
    return hashlib.sha256(name.encode()).hexdigest()
