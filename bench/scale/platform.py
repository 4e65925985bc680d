#!/usr/bin/env python3
"""Writes a SimGrid platform: nodes on one switch that never blocks, a link a node and direction."""
import argparse

# Name: (bytes a second of a link and direction, seconds from one node to another).
NETWORKS = {
    "10g": (10e9 / 8, 20e-6),
    "25g": (25e9 / 8, 10e-6),
    "100g": (100e9 / 8, 2e-6),
}
# Wake-ups between the ranks of a node travel here (world.h).
LOOPBACK = (1e11, 1e-6)


def platform(nodes: int, network: str) -> str:
    bandwidth, latency = NETWORKS[network]
    return f"""<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="simulated" prefix="node-" suffix=".simulated" radical="0-{nodes - 1}" speed="1Gf"
           core="64" bw="{bandwidth:.0f}Bps" lat="{latency / 2:g}s" sharing_policy="SPLITDUPLEX"
           loopback_bw="{LOOPBACK[0]:.0f}Bps" loopback_lat="{LOOPBACK[1]:g}s"/>
</platform>
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", type=int)
    parser.add_argument("network", choices=sorted(NETWORKS))
    arguments = parser.parse_args()
    print(platform(arguments.nodes, arguments.network), end="")
