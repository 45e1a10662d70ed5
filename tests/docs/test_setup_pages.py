"""The how-to pages of what comes before a server runs: installing, systemd, a container, its size, testing the disk.

Their commands run here with other folders in the place of /opt, /etc and /var. Where a command needs a daemon that
tests cannot have (docker, systemd as process 1), the test runs what the daemon would run, and holds the words of the
command itself against the client program or its help.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from staniel.broker.config.schema import ServerSettings
from staniel.journal.disk.ballast import BALLAST_BYTES_MAX
from staniel.queues.config import QueueConfig
from staniel.server.machine import RESERVED_FILES
from tests.support.certificates import Authority
from tests.support.process import STANIEL, run_staniel, running
from tests.support.transcripts import free_port

ROOT = Path(__file__).resolve().parents[2]
HOWTO = ROOT / "docs" / "howto"
UNIT = ROOT / "packaging" / "staniel.service"
WHEEL = "/path/to/staniel-0.1.0-py3-none-any.whl"
SECONDS_MAX = 120
DOCKER_OPTIONS = {
    "build": {"-t"},
    "run": {
        *("-d", "-p", "-v", "--name", "--read-only", "--cap-drop", "--security-opt", "--stop-timeout"),
        *("--health-cmd", "--health-start-period"),
    },
    "exec": set(),
    "push": set(),
}
"""By command, those of `docker COMMAND --help` (28.2) that the pages may name. No docker is needed to run the tests."""


def page(name: str) -> str:
    return (HOWTO / f"{name}.md").read_text("utf-8")


def commands(name: str) -> list[str]:
    """The lines of the indented blocks, without comments; a line that ends in a backslash goes on."""
    text = page(name).replace("\\\n", " ")
    lines = re.findall(r"^    (\S.*?)(?: +# .*)?$", text, re.MULTILINE)
    return [" ".join(line.split()) for line in lines]


def run(command: str, env: dict[str, str], cwd: Path = ROOT) -> str:
    done = subprocess.run(
        ["bash", "-euc", command], env=env, cwd=cwd, capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def dockerfile(instruction: str) -> str:
    """The rest of the last line with that instruction."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    return str(re.findall(rf"^{instruction} (.+)$", text, re.MULTILINE)[-1])


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the libraries that are installed here, and without Staniel: no test of ours needs a network."""
    site = next(path for path in map(Path, sys.path) if (path / "msgspec").is_dir())
    made = tmp_path_factory.mktemp("packages")
    for path in site.iterdir():
        if "staniel" not in path.name and path.suffix != ".pth":
            (made / path.name).symlink_to(path)
    return made


@pytest.mark.slow
@pytest.mark.programs("python:hatchling", "man")
def test_the_commands_of_the_installation_install_it(packages: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, timeout=SECONDS_MAX, env={**os.environ, "STANIEL_PURE": "1"})
    (wheel,) = tmp_path.glob("*.whl")
    home, place = tmp_path / "home", tmp_path / "opt"
    for folder in (".local/share/bash-completion/completions", ".zfunc", ".config/fish/completions"):
        (home / folder).mkdir(parents=True)
    path = f"{place}/bin:{os.environ['PATH']}"
    env = {**os.environ, "HOME": str(home), "PATH": path, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    env = {name: value for name, value in env.items() if not name.startswith(("PYTHON", "STANIEL", "VIRTUAL"))}
    told = [*commands("install"), *commands("extras")]
    assert len(told) == 8
    for each in told:
        heard = run(each.replace("/opt/staniel", str(place)).replace(WHEEL, str(wheel)), env)
        if each.startswith("python3 -m venv"):
            (site,) = place.glob("lib/python3*/site-packages")
            (site / "libraries.pth").write_text(f"{packages}\n")
        if each.endswith("--version"):
            assert heard.startswith("staniel 0.1.0")
    written = [path for path in home.rglob("*") if path.is_file() and path.name.startswith(("staniel", "_staniel"))]
    assert len(written) == 3
    for completion in written:
        assert "_STANIEL_COMPLETE" in completion.read_text("utf-8")
    shown = run(f"man -M {place}/share/man staniel && man staniel-serve", env)
    assert "`man -M /opt/staniel/share/man staniel`" in page("extras") and "SYNOPSIS" in shown
    assert run("make --dry-run wheel", {**os.environ})


TUTORIALS = {
    "start/pymemcache": "PATH_OF_THE_CHECKOUT pymemcache",
    "start/client": "PATH_OF_THE_CHECKOUT",
    "start/spark": "'PATH_OF_THE_CHECKOUT[spark]'",
    "worker-tutorial": "PATH_OF_THE_CHECKOUT",
}
"""By page, what its `pip install` installs: their transcripts are pasted by test_start.py and test_worker_page.py."""


@pytest.mark.slow
@pytest.mark.programs("python:hatchling", "python:pymemcache")
def test_the_commands_that_begin_a_tutorial_install_what_it_needs(packages: Path, tmp_path: Path) -> None:
    make = "python3 -m venv venv && . venv/bin/activate"
    for name, installed in TUTORIALS.items():
        assert commands(f"../{name}")[:2] == [make, f"pip install {installed}"]
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    env = {name: value for name, value in env.items() if not name.startswith(("PYTHON", "STANIEL", "VIRTUAL"))}
    env["STANIEL_PURE"] = "1"  # compiling takes minutes
    run(make, env, tmp_path)
    (site,) = tmp_path.glob("venv/lib/python3*/site-packages")
    (site / "libraries.pth").write_text(f"{packages}\n")
    install = f"pip install {TUTORIALS['start/pymemcache']}".replace("PATH_OF_THE_CHECKOUT", str(ROOT))
    heard = run(f". venv/bin/activate; {install}; staniel --version; python -c 'import pymemcache'", env, tmp_path)
    assert "\nstaniel 0.1.0" in heard


def test_the_table_of_extras_is_that_of_the_project() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    rows = re.findall(r"^\| (`.+?`) \|", page("extras"), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == extras - {"dev", "docs"}
    assert {path.stem for path in (ROOT / "packaging" / "requirements").glob("*.txt")} >= extras - {"dev", "docs"}


@pytest.mark.programs("useradd", "systemctl", "systemd-analyze", "journalctl", "user:root")
def test_the_commands_for_systemd_make_a_user_and_a_unit_that_systemd_accepts(tmp_path: Path) -> None:
    """In a folder in the place of the root, which is how these programs install into an image."""
    for folder in ("etc/systemd/system", "etc/staniel", "opt/staniel/bin", "usr/bin", "logs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "opt/staniel/bin/staniel").symlink_to(STANIEL[0])
    settings = tmp_path / "staniel.toml"
    settings.write_text((ROOT / "examples" / "staniel.toml").read_text())
    useradd, install_settings, install_unit, reload, enable, follow = commands("systemd")
    run(useradd.replace("useradd", f"useradd --prefix {tmp_path}"), {**os.environ})
    assert "staniel:" in (tmp_path / "etc/passwd").read_text()
    for each in (install_settings, install_unit):
        command = each.replace(" /etc/", f" {tmp_path}/etc/").replace("--group=staniel", "--group=root")
        run(command.replace(" staniel.toml", f" {settings}"), {**os.environ})
    assert (reload, enable) == ("systemctl daemon-reload", "systemctl enable --now staniel")
    run(f"systemctl --root={tmp_path} enable staniel", {**os.environ})
    assert (tmp_path / "etc/systemd/system/multi-user.target.wants/staniel.service").is_symlink()
    for each in (follow, *re.findall(r"`(journalctl [^`]+)`", page("systemd"))):
        run(each.removesuffix(" -f") + f" --directory={tmp_path}/logs", {**os.environ})
    verify = tmp_path / "staniel.service"
    verify.write_text(UNIT.read_text().replace("/opt/staniel/bin/staniel", STANIEL[0]))
    assert run(f"systemd-analyze verify {verify} 2>&1", {**os.environ}) == ""
    assert run_staniel("config", "check", str(tmp_path / "etc/staniel/staniel.toml")).returncode == 0


def unit(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_the_unit_is_what_the_page_says_of_it() -> None:
    assert unit("ExecStart") == ["/opt/staniel/bin/staniel serve --config /etc/staniel/staniel.toml"]
    assert unit("ReadWritePaths") == unit("WorkingDirectory") == ["/var/lib/staniel"] and unit("User") == ["staniel"]
    assert unit("WatchdogSec") == ["2min"] and unit("TimeoutStopSec") == ["30"] and unit("Type") == ["notify"]
    assert unit("LimitNOFILE") and "LimitNOFILE=" in page("systemd")
    described = page("systemd")
    for told in ("/opt/staniel", "/etc/staniel/staniel.toml", "two minutes (`WatchdogSec`)", "`TimeoutStopSec=30`"):
        assert told in described


def test_what_the_unit_does_to_start_reload_and_stop_works_on_a_server(tmp_path: Path) -> None:
    """ExecStart's words, ExecReload's signal, KillSignal's signal and the wait for the end, without systemd."""
    assert unit("ExecReload") == ["/bin/kill -HUP $MAINPID"] and unit("KillSignal") == ["SIGTERM"]
    words = shlex.split(unit("ExecStart")[0])
    with running(tmp_path / "server", config="[default]\nmax_items = 10\n") as server:
        assert server.command[1:3] == words[1:3]
        server.config.write_text("[default]\nmax_items = 20\n")
        run(unit("ExecReload")[0], {**os.environ, "MAINPID": str(server.pid)})
        server.signal(signal.Signals[unit("KillSignal")[0]])
        assert server.wait(float(unit("TimeoutStopSec")[0])) == 0
        assert "config.reload" in server.stderr or "reload" in server.stderr


@pytest.fixture
def image(tmp_path: Path) -> dict[str, str]:
    """What stands for the paths and the port of the image in commands that run in it."""
    return {"/var/lib/staniel": str(tmp_path / "spool"), "22133": str(free_port()), '"0.0.0.0"': '"127.0.0.1"'}


def in_image(text: str, image: dict[str, str]) -> str:
    for name, real in image.items():
        text = text.replace(name, real)
    return text


def baked_settings() -> str:
    """The settings file that the Dockerfile's printf writes."""
    found = re.search(r"printf '(.+)' \\\n\s+> /etc/staniel/staniel\.toml", (ROOT / "Dockerfile").read_text())
    assert found
    return str(found[1]).replace("\\n", "\n")


def toml_of(name: str) -> str:
    (found,) = re.findall(r"^```toml\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize("settings", ["baked", "own"])
def test_what_the_image_runs_serves_and_its_checks_find_it(
    settings: str, image: dict[str, str], tmp_path: Path
) -> None:
    """Without docker: the image's command with its settings, or with those of the page, and what runs beside it."""
    config = tmp_path / "staniel.toml"
    own = f"{toml_of('container')}\n[memcache]\nport = 22133\n"
    config.write_text(in_image(baked_settings() if settings == "baked" else own, image))
    assert run_staniel("config", "check", str(config)).returncode == 0
    entry, words = (re.findall(r'"([^"]+)"', dockerfile(each)) for each in ("ENTRYPOINT", "CMD"))
    assert entry == ["staniel"]
    check = re.findall(r'"([^"]+)"', dockerfile("HEALTHCHECK").partition("CMD ")[2] or "")
    serve = [*STANIEL, *[word.replace("/etc/staniel/staniel.toml", str(config)) for word in words]]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        try:
            assert server.stdout is not None and "listens on" in server.stdout.readline()
            ask = f"--port={image['22133']}"
            (inside,) = [
                each.partition(" exec staniel staniel ")[2] for each in commands("container") if "exec" in each
            ]
            for command in (check[1:] or ["ping", "--alive"], inside.split()):
                done = run_staniel(*command, ask)
                assert done.returncode == 0, done
        finally:
            server.send_signal(signal.Signals[dockerfile("STOPSIGNAL")])
        assert server.wait(60) == 0


def test_the_health_check_for_tls_alone_works_without_a_port(tmp_path: Path) -> None:
    made = Authority(tmp_path).issue("server")
    found = re.search(r'`--health-cmd\s"staniel (health --spool /var/lib/staniel)"`', page("container"))
    assert found and '`[memcache] port = "none"`' in page("container")
    tls = f'[memcache]\nport = "none"\ntls_port = 0\n[tls]\ncertificate = "{made.certificate}"\nkey = "{made.key}"\n'
    with running(tmp_path / "server", config=tls) as server:
        words = found[1].replace("/var/lib/staniel", str(server.spool)).split()
        assert run_staniel(*words).returncode == 0


def test_the_page_and_the_dockerfile_agree_on_user_port_and_folder() -> None:
    assert f"`chown {dockerfile('USER')} /srv/staniel`" in page("container")
    start = next(each for each in commands("container") if each.startswith("docker run"))
    assert f":{dockerfile('EXPOSE')} " in start and f":{dockerfile('VOLUME')} " in start and "--read-only" in start


def test_docker_knows_each_option_of_the_pages() -> None:
    told = [*commands("container"), *commands("kubernetes")]
    for command, known in DOCKER_OPTIONS.items():
        lines = [each for each in told if each.startswith(f"docker {command} ")]
        options = {word.partition("=")[0] for line in lines for word in line.split() if re.match(r"--?[a-z]", word)}
        if command == "run":
            options |= set(re.findall(r"--health-[a-z-]+", page("container")))
        assert lines and options <= known


def test_the_figures_for_a_size_are_those_of_the_program() -> None:
    told = " ".join(page("size").split())
    assert "a quarter for journals, 64 for the server, 16 for operators" in told and RESERVED_FILES == 64
    assert 2 * ServerSettings().reserved_connections == 16
    code = "from staniel.server.machine import raise_file_limit; print(*raise_file_limit())"
    granted = run(f"ulimit -n 4096; {sys.executable} -c '{code}'", {**os.environ})
    assert granted.split() == ["1024", str(4096 - 1024 - 64)]
    assert "16 MB of reserve" in told and BALLAST_BYTES_MAX == 16 << 20
    assert "`max_journal_size` a queue (1 GB by default)" in told
    assert QueueConfig().max_journal_bytes == 1 << 30


@pytest.mark.parametrize("option", ["-Hn", "-f"])
def test_the_limits_of_a_size_are_those_that_the_shell_names(option: str) -> None:
    assert f"`ulimit {option}`" in page("size")
    limits = {"-Hn": resource.getrlimit(resource.RLIMIT_NOFILE)[1], "-f": resource.getrlimit(resource.RLIMIT_FSIZE)[0]}
    heard = run(f"ulimit {option}", {**os.environ}).strip()
    of_blocks = 1024 if option == "-f" else 1
    assert heard == "unlimited" if limits[option] < 0 else int(heard) * of_blocks == limits[option]


SELFTEST_SECONDS_MAX = 300


@pytest.mark.slow
def test_the_commands_that_test_a_disk_do_so(tmp_path: Path) -> None:
    told = " ".join(page("test-the-disk").split())
    found = [*commands("test-the-disk")[:1], *re.findall(r"`(?:ssh HOST )?(staniel selftest [^`]+)`", told)]
    assert found[0] == "staniel selftest /var/lib" and len(found) == 3
    test, write, verify = [shlex.split(each.replace("/var/lib", str(tmp_path)))[1:] for each in found]
    # Hundreds of syncs, as long as the disk of this machine takes for them.
    command = [*STANIEL, *test, "--seconds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SELFTEST_SECONDS_MAX)
    assert done.returncode == 0 and "verdict: fit for every sync_journal" in done.stdout, done
    found_names = [line[9:].partition(":")[0] for line in done.stdout.splitlines()]
    rows = re.findall(r"^\| ([^|]+?) \|", page("test-the-disk"), re.MULTILINE)[2:]
    assert [name for row in rows for name in row.split(", ") if name not in found_names] == []
    with subprocess.Popen([*STANIEL, *write], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().startswith("pull the plug")
        shown = [int(process.stdout.readline().split()[1]) for _ in range(3)]
        process.kill()
    kept = run_staniel(*[str(shown[-1]) if word == "N" else word for word in verify])
    assert kept.returncode == 0, kept
    assert (tmp_path / "staniel-power-cut").is_dir(), "the page says to remove it"
    lost = run_staniel(*["100000000" if word == "N" else word for word in verify])
    assert lost.returncode == 1, lost


def test_every_page_is_run_here_or_by_its_commands_on_a_server() -> None:
    from tests.docs.test_howto import RUN

    here = {"install.md", "systemd.md", "container.md", "size.md", "test-the-disk.md", "kubernetes.md"}
    here |= {"extras.md", "kubernetes-run.md"}
    here |= {"cluster-address.md"}  # by tests/cluster/test_proxy.py
    here |= {"secure.md", "backup.md", "kestrel.md"}  # by test_security_page, test_transcripts, test_kestrel_page
    assert {path.name for path in HOWTO.glob("*.md")} == here | set(RUN)
