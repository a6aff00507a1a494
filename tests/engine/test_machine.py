"""Limits of the machine, read from made-up /proc and cgroup trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from insitu.engine.machine import has_cpu_quota, memory_limit, num_usable_cpus

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

MEMINFO = "MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:   4194304 kB\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_cgroups_what_is_available(tmp_path: Path) -> None:
    limit = memory_limit(write(tmp_path, {}))
    assert limit.limit_bytes == 4 * 2**30
    assert "MemAvailable" in limit.source


def test_the_least_of_all_ancestors(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b/c\n",
        "sys/fs/cgroup/a/memory.max": "1073741824\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/b/c/memory.max": "2147483648\n",
    }
    limit = memory_limit(write(tmp_path, files))
    assert limit.limit_bytes == 2**30
    assert limit.source.endswith("/a")


def test_version_1_and_its_way_to_say_unlimited(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:memory:/job\n4:cpu,cpuacct:/job\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912\n",
    }
    assert memory_limit(write(tmp_path, files)).limit_bytes == 2**29


def test_a_container_that_sees_its_own_root(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/memory.max": "123456789\n"}
    assert memory_limit(write(tmp_path, files)).limit_bytes == 123456789


def test_nonsense_limits_nothing(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "what\n::\n", "sys/fs/cgroup/memory.max": "-5 lots\n"}
    assert memory_limit(write(tmp_path, files)).limit_bytes == 4 * 2**30


def test_the_address_space_is_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path, {"proc/self/status": "Name: x\nVmSize:    1024 kB\n"})
    monkeypatch.setattr("resource.getrlimit", lambda _: (3 * 2**20, -1))
    limit = memory_limit(root)
    assert (limit.limit_bytes, limit.source) == (2 * 2**20, "ulimit -v")
    monkeypatch.setattr("resource.getrlimit", lambda _: (2**19, -1))
    assert memory_limit(root).limit_bytes == 0


def test_cpus_by_quota_and_cores(tmp_path: Path) -> None:
    most = num_usable_cpus(write(tmp_path / "a", {}))
    assert most >= 1
    quota = {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}
    assert num_usable_cpus(write(tmp_path / "b", quota)) == 1
    half = {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}
    assert num_usable_cpus(write(tmp_path / "c", half)) == 1
    old = {
        "proc/self/cgroup": "4:cpu,cpuacct:/j\n",
        "sys/fs/cgroup/cpu,cpuacct/j/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/j/cpu.cfs_period_us": "100000\n",
    }
    assert num_usable_cpus(write(tmp_path / "d", old)) == most
    cpu = "processor : {0}\nphysical id : 0\ncore id : 0\n\n"
    siblings = {"proc/cpuinfo": cpu.format(0) + cpu.format(1)}
    assert num_usable_cpus(write(tmp_path / "e", siblings)) == 1


def test_a_quota_is_seen_wherever_it_stands(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}
    assert not has_cpu_quota(write(tmp_path, files))
    above = {"sys/fs/cgroup/a/cpu.max": "800000 100000\n"}
    assert has_cpu_quota(write(tmp_path, above))
