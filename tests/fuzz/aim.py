"""Which requests a hostile client could rightly harm the steady producer with.

There is no authorization yet: whoever may connect may delete a topic, announce a broker's end, or
claim to be a follower or a newer controller. No broker can refuse that, so it is kept out of the
fuzzer's aim; everything else about these requests is tried.
"""

from __future__ import annotations

from typing import Any

from odradek.handlers.dispatch import SERVED
from odradek.protocol import codec, headers
from odradek.protocol.api import ApiKey
from tests.fuzz import corpus, edges

# They change nothing about the topics that they name.
_READING = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
    }
)
# More partitions than this are rightly created, and rightly cost memory.
_MOST_PARTITIONS = 20
_SURELY_REFUSED = 2 * edges.MOST_NEW_PARTITIONS
_TOPIC_RESOURCE = 2


def harms(frame: bytes) -> bool:
    """Return whether a broker would rightly obey a frame and harm the producer or the cluster."""
    try:
        header, position = headers.decode_request_header(frame)
        served = SERVED.get(header.api_key)
        if served is None:
            return False
        names_it = edges.STEADY_TOPIC.encode() in frame
        if names_it and header.api_key not in _READING:
            return True
        request, _ = codec.decode(served.api.request, header.api_version, frame, position)
    except Exception:  # the broker is what is to judge it
        return False
    if corpus.breaks_the_cluster(frame):
        return True
    return _is_harmful(ApiKey(header.api_key), request, names_it=names_it)


def _is_harmful(key: ApiKey, request: Any, *, names_it: bool) -> bool:
    match key:
        case ApiKey.FETCH:
            return names_it and request.replica_id >= 0
        case ApiKey.ELECT_LEADERS:
            return request.topic_partitions is None
        case ApiKey.CREATE_TOPICS if not request.validate_only:
            asked = sum(max(one.num_partitions, len(one.assignments)) for one in request.topics)
            names = {one.name for one in request.topics}
            placed = {
                broker
                for topic in request.topics
                for one in topic.assignments
                for broker in one.broker_ids
            }
            # With a replica on a broker that is none, a topic is made, and never deleted.
            if any(broker >= 0 and broker not in edges.BROKERS for broker in placed):
                return True
            # What no frame deletes again would grow for ever.
            return _MOST_PARTITIONS < asked < _SURELY_REFUSED or not names <= {*edges.TOPICS}
        case ApiKey.CREATE_PARTITIONS if not request.validate_only:
            return any(_MOST_PARTITIONS < one.count < _SURELY_REFUSED for one in request.topics)
        case ApiKey.ALTER_CONFIGS | ApiKey.INCREMENTAL_ALTER_CONFIGS if not request.validate_only:
            # Settings and log levels of brokers are everybody's.
            return any(one.resource_type != _TOPIC_RESOURCE for one in request.resources)
        case ApiKey.DELETE_TOPICS:
            return not {*edges.KEPT_TOPICS}.isdisjoint(request.topic_names)
    return False
