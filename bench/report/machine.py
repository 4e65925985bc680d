"""What figures depend on: the machine, versions, the commit. `python3 machine.py FILE BUILD_FOLDER`
writes it as JSON, and warns on standard error where the machine is busy; `--note FILE PART SHARE`
adds what share of the cores was busy before a part."""

import json
import os
import platform
import re
import subprocess
import sys
import time

BUSY_SHARE = 0.1  # of all cores, above which figures mean little


def busy_share(before, after):
    """The share of processor time that was not idle between two first lines of /proc/stat."""
    first, second = ([int(value) for value in line.split()[1:9]] for line in (before, after))
    spent = [new - old for old, new in zip(first, second)]
    total = sum(spent)
    return 0.0 if total <= 0 else 1.0 - (spent[3] + spent[4]) / total  # idle and iowait


def _sample():
    with open("/proc/stat", encoding="ascii") as file:
        return file.readline()


def busy_now(seconds=1.0):
    before = _sample()
    time.sleep(seconds)
    return busy_share(before, _sample())


def _output(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_model():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        found = re.search(r"^model name\s*:\s*(.+)$", file.read(), re.M)
    return found.group(1) if found else platform.machine()


def cached(build, key):
    """A value of CMake's cache, or nothing."""
    try:
        with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
            found = re.search(rf"^{key}:\w+=(.*)$", file.read(), re.M)
    except OSError:
        return ""
    return found.group(1) if found else ""


def _system():
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def facts(build):
    mpirun = cached(build, "MPIEXEC_EXECUTABLE") or "mpirun"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = {name: _output("dpkg-query", "-W", "-f=${Version}", package)
                for name, package in (("LibTorch", "libtorch-dev"), ("gloo", "libgloo-dev"))}
    libtorch = cached(build, "LibTorch_INCLUDE_DIR")
    if libtorch and not libtorch.startswith("/usr/include"):
        packages["LibTorch"] = ""  # another than Debian's
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "processor": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory),
        "system": _system(),
        "kernel": platform.release(),
        "commit": _output("git", "rev-parse", "--short=12", "HEAD"),
        "changed_since_commit": bool(_output("git", "status", "--porcelain", "-uno")),
        "compiler": _output(cached(build, "CMAKE_CXX_COMPILER") or "c++", "--version").split("\n")[0],
        "build_type": cached(build, "CMAKE_BUILD_TYPE"),
        "mpi": _output(mpirun, "--version").split("\n")[0],
        **{name: version for name, version in packages.items() if version},
    }


def _read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def _write(path, found):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
        file.write("\n")


def main(arguments):
    if len(arguments) == 2 and arguments[1] == "--busy":
        print(f"{busy_now():.3f}")
        return 0
    if len(arguments) == 5 and arguments[1] == "--note":
        found = _read(arguments[2])
        found.setdefault("busy_share", {})[arguments[3]] = float(arguments[4])
        _write(arguments[2], found)
        return 0
    if len(arguments) != 3:
        print("usage: machine.py FILE BUILD_FOLDER | --busy | "
              "--note FILE PART SHARE", file=sys.stderr)
        return 2
    found = facts(arguments[2])
    # Other parts may have run before.
    found["busy_share"] = _read(arguments[1]).get("busy_share", {})
    _write(arguments[1], found)
    busy = busy_now()
    if busy > BUSY_SHARE:
        print(f"WARNING: {busy:.0%} of the cores are busy with something else; "
              "the figures will say little about hora", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
