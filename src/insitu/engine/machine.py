"""What this process may use of its machine: memory, processors.

Reads cgroups (v2 and v1), ulimits, /proc and the affinity mask. Not here: what the model needs
(``plan``).

Always true: a limit is the least of all that apply, and a file that cannot be read limits nothing.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

# cgroup v1 writes "no limit" as a number near 2**63.
_NO_LIMIT = 2**60


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes this process may hold, and which rule says so."""

    limit_bytes: int
    source: str


def memory_limit(root: Path = Path("/")) -> Memory:
    """The least limit of all ancestor cgroups, or what the machine can still give."""
    limits = [
        Memory(size, f"cgroup {folder}")
        for folder in _cgroup_folders(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (size := _number(folder / name)) is not None and size < _NO_LIMIT
    ]
    limits += _address_space(root)
    limits.append(_machine_memory(root))
    return min(limits, key=lambda one: one.limit_bytes)


def _address_space(root: Path) -> list[Memory]:
    """What ``ulimit -v`` leaves of the address space, much of which is taken already."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    sizes = [line.split()[1] for line in _lines(root / "proc/self/status") if "VmSize:" in line]
    if limit == resource.RLIM_INFINITY or not sizes or not sizes[0].isdigit():
        return []
    return [Memory(max(0, limit - int(sizes[0]) * 1024), "ulimit -v")]


def _machine_memory(root: Path) -> Memory:
    sizes = {}
    for line in _lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            sizes[name] = int(words[0]) * 1024
    for name in ("MemAvailable", "MemTotal"):
        if name in sizes:
            return Memory(sizes[name], f"/proc/meminfo {name}")
    page_bytes, num_pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    return Memory(page_bytes * num_pages, "physical memory")


def num_usable_cpus(root: Path = Path("/")) -> int:
    """Least of the affinity mask, the whole part of any cgroup quota, and the physical cores."""
    counts = [_num_affine_cpus()]
    counts += [max(1, int(quota)) for quota in _cpu_quotas(root)]
    cores = _num_physical_cores(root)
    if cores:
        counts.append(cores)
    return max(1, min(counts))


def has_cpu_quota(root: Path = Path("/")) -> bool:
    """Whether a cgroup meters CPU time: a thread that waits busily then spends what work needs."""
    return bool(_cpu_quotas(root))


def _num_affine_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_quotas(root: Path) -> list[float]:
    quotas = []
    for folder in _cgroup_folders(root, "cpu"):
        words = " ".join(_lines(folder / "cpu.max")).split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
        quota, period = (_number(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota and period:
            quotas.append(quota / period)
    return quotas


def _num_physical_cores(root: Path) -> int:
    """Distinct (package, core) pairs, or 0 where the kernel does not tell."""
    cores, package, core = set(), "", ""
    for line in [*_lines(root / "proc/cpuinfo"), ""]:
        name, _, value = (word.strip() for word in line.partition(":"))
        if name == "physical id":
            package = value
        elif name == "core id":
            core = value
        elif not name and core:
            cores.add((package, core))
            package, core = "", ""
    return len(cores)


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """This process's cgroup in every hierarchy that may limit it, with all its ancestors."""
    mount = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        tops = [mount] if not controllers else [mount / controllers, mount / controller]
        relative = Path(path.lstrip("/"))
        if ".." in relative.parts:
            relative = Path()
        for top in tops:
            folders += [top / part for part in (relative, *relative.parents)]
    return list(dict.fromkeys([*folders, mount]))


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
