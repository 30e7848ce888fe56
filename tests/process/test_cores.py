import pytest

from sophon.process.cores import quota_here


@pytest.fixture
def cgroup(tmp_path):
    def make(said, files):
        (tmp_path / "cgroup").write_text(said)
        for name, text in files.items():
            path = tmp_path / "fs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return quota_here(tmp_path / "cgroup", tmp_path / "fs")

    return make


def test_a_quota_is_found_in_version_two(cgroup):
    assert cgroup("0::/a/b\n", {"a/b/cpu.max": "20000 100000\n"}) == 0.2


def test_a_group_is_held_to_what_those_above_it_are_held_to(cgroup):
    files = {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000", "cpu.max": "90000 100000"}
    assert cgroup("0::/a/b\n", files) == 0.5


def test_a_quota_is_found_in_version_one(cgroup):
    files = {"cpu/a/cpu.cfs_quota_us": "4000\n", "cpu/a/cpu.cfs_period_us": "10000\n"}
    assert cgroup("9:name=systemd:/x\n4:cpu,cpuacct:/a\n", files) == 0.4


def test_without_a_quota_there_is_none(cgroup, tmp_path):
    files = {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}
    assert cgroup("4:cpu,cpuacct:/a\n0::/\n", files) is None
    assert quota_here(tmp_path / "not there") is None
