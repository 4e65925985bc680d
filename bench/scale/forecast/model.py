"""Step time of data-parallel training on nodes that are not at hand. Pure: values in, values out.

A *trace* is what one rank does in a step, measured on a single rank:
  {"what", "backward_begin_ms", "backward_end_ms", "step_ms", "wrapper_ms",
   "buckets": [{"bytes", "ready_ms"}, ...], "contention": {"RANKS_A_NODE": factor}}
with times from the step's begin, buckets in the order in which they become ready. `wrapper_ms` is
what the wrapper adds with one rank. `contention`: how many times longer the plain step takes with so
many ranks on one node than alone, while none has to share a core (1 where it is not named).

A *network*: {"nodes", "ranks_per_node", "cores_per_node", "link_gbit" (a node's, each direction),
"latency_us" (one way), "message_us" (what a message costs its sender or receiver),
"memory_gb_s" (a node's, reads and writes together), "pass_uses_cores" (the reduction in the node
runs on the cores that compute, not beside them)}.
"""
import math


def chunk_bytes(nodes):
    """Of HORA_CHUNK_SIZE=0: chunk_limit of core/plan."""
    return min(max(nodes * (32 << 10), 1 << 20), 32 << 20)


def hops(nodes):
    """Of the binomial tree of leaders."""
    return math.ceil(math.log2(nodes)) if nodes > 1 else 0


def negotiation_ms(network):
    """A message up and one down each hop; each leader serves one child after the other."""
    levels = hops(network["nodes"])
    return (levels * 2 * network["latency_us"] + 4 * levels * network["message_us"]) / 1e3


def node_pass_ms(size, network):
    """All ranks of a node together read and write every rank's copy once: 2 bytes a byte and rank."""
    ranks = network["ranks_per_node"]
    if ranks == 1 and network["nodes"] == 1:
        return 0.0
    return 2 * ranks * size / (network["memory_gb_s"] * 1e6)


def link_ms(size, network):
    """Of the direct algorithm: every node sends and receives 2 (n - 1) / n of the bytes, in two
    phases of n - 1 messages a chunk and rank."""
    nodes = network["nodes"]
    if nodes == 1:
        return 0.0
    wire = 2 * (nodes - 1) / nodes * size / (network["link_gbit"] / 8 * 1e6)
    chunks = math.ceil(size / chunk_bytes(nodes))
    messages = 2 * (nodes - 1) * chunks * 2 * network["message_us"] / 1e3
    return max(wire, messages) + 2 * network["latency_us"] / 1e3


def bucket_ms(size, network):
    """One bucket: chunks overlap the node's pass with the link, but for the first."""
    in_node, between = node_pass_ms(size, network), link_ms(size, network)
    first = min(in_node, between) / max(1, math.ceil(size / chunk_bytes(network["nodes"])))
    return negotiation_ms(network) + max(in_node, between) + first


def compute_factor(trace, network):
    """How many times longer a rank computes than alone on a node."""
    ranks, cores = network["ranks_per_node"], network["cores_per_node"]
    running = min(ranks, cores)  # at any time
    return trace.get("contention", {}).get(str(running), 1.0) * max(1.0, ranks / cores)


def forecast(trace, network):
    """{"step_ms", "plain_ms", "hidden_share", "efficiency"}: efficiency is the throughput a rank has
    of what it has alone on a node."""
    factor = compute_factor(trace, network)
    is_alone = network["nodes"] * network["ranks_per_node"] == 1
    end = 0.0
    busy = 0.0
    on_cores = 0.0
    for bucket in trace["buckets"]:
        if is_alone:
            break
        took = bucket_ms(bucket["bytes"], network)
        end = max(end, bucket["ready_ms"] * factor) + took
        busy += took
        on_cores += node_pass_ms(bucket["bytes"], network)
    backward_end = trace["backward_end_ms"] * factor
    exposed = max(0.0, end - backward_end)
    if network.get("pass_uses_cores", True):
        # What ran on the cores while they computed has delayed the computation by as much.
        exposed = max(exposed, on_cores)
    step = trace["step_ms"] * factor + trace["wrapper_ms"] * factor + exposed
    return {
        "step_ms": step,
        "plain_ms": trace["step_ms"] * factor,
        "hidden_share": 1 - min(1.0, exposed / busy) if busy > 0 else 1.0,
        "efficiency": trace["step_ms"] / step,
    }
