"""Sources that are asked by network, against the real servers on loopback."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ivc_host.health import registry, round
from ivc_host.health.contract import Context, HealthError, Level, Reading
from ivc_host.health.hostfiles import HostFiles
from ivc_host.health.load import LoadContext
from ivc_host.health.past import PastFile
from ivc_host.health.promql import owner, owners
from ivc_host.health.settings import HostSettings, Settings
from ivc_host.health.webhook import alerts_of
from ivc_host.hypervisor.host import Host
from test_health import Site, edac

OK, WARNING, FAILING, UNKNOWN = Level.OK, Level.WARNING, Level.FAILING, Level.UNKNOWN
_SERVERS = ("prometheus", "prometheus-node-exporter", "prometheus-alertmanager")


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skips only where a program is not installed; `ivc setup --for test` does that."""
    missing = [name for name in programs if shutil.which(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def until(true: Callable[[], Any], what: str, seconds: float = 20) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = true()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what}")


@contextmanager
def running(*words: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)


def get(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read()
    except OSError:
        return None


def host(name: str = "a", **settings: Any) -> HostFiles:
    return HostFiles(Host(name, "processes", None), HostSettings(**settings))


@dataclass
class Web:
    """node_exporter on a fake /sys -> Prometheus -> Alertmanager -> the port of a webhook."""

    folder: Path
    prometheus: str
    alertmanager: str
    webhook: str

    def memory(self, corrected: int, uncorrected: int) -> None:
        files = edac(corrected, uncorrected)
        files |= {
            f"/sys/devices/system/edac/mc/mc0/{name}_noinfo_count": "0\n" for name in ("ce", "ue")
        }
        for name, text in files.items():
            path = self.folder / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


_PROMETHEUS = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
scrape_configs:
  - job_name: node
    static_configs:
      - targets: ['127.0.0.1:{node}']
        labels: {{instance: 'a.example.org:9100'}}
      - targets: ['127.0.0.1:1']
        labels: {{instance: dead}}
rule_files: [rules.yml]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{alert}']}}]}}]}}
"""
_RULES = """
groups:
  - name: g
    rules:
      - alert: Uncorrected
        expr: node_edac_uncorrectable_errors_total > 0
        labels: {severity: critical}
        annotations: {summary: memory is bad}
      - alert: Chatter
        expr: vector(1)
        labels: {severity: none, instance: a}
"""
_ALERTMANAGER = """
route: {{receiver: ivc, group_wait: 0s, group_interval: 1s, repeat_interval: 1h}}
receivers: [{{name: ivc, webhook_configs: [{{url: 'http://127.0.0.1:{hook}/'}}]}}]
"""


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    folder = tmp_path_factory.mktemp("web")
    node, prometheus, alert, hook = (free_port() for _ in range(4))
    (folder / "prometheus.yml").write_text(_PROMETHEUS.format(node=node, alert=alert))
    (folder / "rules.yml").write_text(_RULES)
    (folder / "alertmanager.yml").write_text(_ALERTMANAGER.format(hook=hook))
    one = Web(folder, *(f"http://127.0.0.1:{port}" for port in (prometheus, alert, hook)))
    one.memory(0, 0)
    with ExitStack() as stack:
        for name, words in {
            "node-exporter": [
                f"--web.listen-address=127.0.0.1:{node}",
                f"--path.sysfs={folder}/sys",
                "--collector.disable-defaults",
                *(
                    f"--collector.{name}"
                    for name in ("edac", "cpu", "meminfo", "diskstats", "stat")
                ),
            ],
            "": [
                f"--web.listen-address=127.0.0.1:{prometheus}",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
            ],
            "alertmanager": [
                f"--web.listen-address=127.0.0.1:{alert}",
                f"--config.file={folder}/alertmanager.yml",
                f"--storage.path={folder}/alerts",
                "--cluster.listen-address=",
            ],
        }.items():
            program = f"prometheus-{name}".rstrip("-")
            stack.enter_context(running(program, *words, log=folder / f"{program}.log"))
        until(lambda: get(f"{one.prometheus}/-/ready"), "Prometheus")
        until(lambda: get(f"{one.alertmanager}/-/ready"), "Alertmanager")
        asked = f"{one.prometheus}/api/v1/query?query=count_over_time(node_boot_time_seconds[1m])>2"
        until(lambda: b"example" in (get(asked) or b""), "samples of node_exporter")
        yield one


@pytest.fixture
def past(tmp_path: Path) -> Iterator[PastFile]:
    file = PastFile(tmp_path / "past.db")
    yield file
    file.close()


def said(
    name: str, hosts: Sequence[HostFiles], past: PastFile, **options: Any
) -> dict[tuple[str, str], Reading]:
    settings = Settings(sources={name: options})
    sources = registry.sources(settings, Context(past), "guard.toml")
    readings = asyncio.run(round.read(sources, hosts, time.time()))
    past.take(readings, round.rules(sources, settings.hysteresis))
    return {(one.host, one.item): one for one in readings}


@needs(*_SERVERS)
def test_prometheus(web: Web, past: PastFile) -> None:
    hosts = [host("a"), host("b"), host("c", aliases=["dead"])]
    web.memory(7, 0)
    found = said("prometheus", hosts, past, url=web.prometheus)
    assert found["a", "memory/uncorrected"].level is OK
    assert found["a", "memory/uncorrected"].text == "0 (controller=0)"
    # Prometheus has no target of that name; it has one, and gets no answer of it.
    assert found["b", ""].text.startswith("Prometheus has no target whose instance is this host")
    assert found["c", ""].text == "Prometheus does not reach it"
    assert {one.level for (name, _), one in found.items() if name != "a"} == {UNKNOWN}
    web.memory(7, 2)
    own = [{"item": "memory/ue", "query": "node_edac_uncorrectable_errors_total", "failing": 2.0},
           {"item": "memory/free", "query": "node_memory_MemAvailable_bytes / 1e30",
            "bad": "below", "warning": 1.0},
           {"item": "x/bad", "query": "no such (", "warning": 1.0},
           {"item": "x/nan", "query": "node_boot_time_seconds * NaN", "warning": 1.0}]  # fmt: skip

    def failing() -> dict[tuple[str, str], Reading] | None:
        found = said("prometheus", hosts, past, url=web.prometheus, queries=own)
        return found if found["a", "memory/ue"].level is FAILING else None

    found = until(failing, "the uncorrected errors")
    assert (found["a", "memory/ue"].value, found["a", "memory/ue"].threshold) == (2, 2)
    assert found["a", "memory/free"].level is WARNING
    assert found["a", "x/bad"].level is UNKNOWN and "parse error" in found["a", "x/bad"].text
    assert found["a", "x/nan"].level is UNKNOWN


@needs(*_SERVERS)
def test_load_of_prometheus(web: Web, past: PastFile) -> None:
    settings = Settings.model_validate(
        {"load": {"source": "prometheus", "options": {"url": web.prometheus}}}
    )
    source = registry.load_source(settings, LoadContext(past), "guard.toml")
    # Long enough for a machine that is so busy that it misses scrapes.
    a, _ = asyncio.run(source.load([host("a"), host("z")], 60))
    assert a.cpu is not None and a.memory is not None and a.io is not None, a
    assert 0 <= a.cpu <= 100 and 0 <= a.memory < 100 and 0 < a.coverage <= 1, a
    a, z = asyncio.run(source.load([host("a"), host("z")], 1800))
    assert 0 < a.coverage < 0.1  # it has run for seconds
    assert z.cpu is None and z.text == "Prometheus has no node_exporter's samples of it"
    # What an idle host uses, as the administrator says: all that is used is too much then.
    (zero,) = asyncio.run(source.load([host("a", idle_memory=0)], 1800))
    assert zero.memory is not None and zero.memory > 1


@needs(*_SERVERS)
def test_alerts_asked_for_and_sent(web: Web, past: PastFile, tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.settings("[sources.webhook]")
    port = web.webhook.rsplit(":", 1)[1]
    words = [sys.executable, "-m", "ivc_host", "guard", "webhook"]
    words += ["--inventory", str(tmp_path / "hosts.toml"), "--listen", f"127.0.0.1:{port}"]
    log = tmp_path / "log"
    with running(*words, log=log):
        until(lambda: "listening" in log.read_text(), "the webhook")
        web.memory(0, 3)

        def alert() -> Reading | None:
            found = said("alertmanager", [host("a")], past, url=web.alertmanager)
            return found.get(("a", "alert/Uncorrected"))

        one = until(alert, "the alert")
        assert (one.level, one.text) == (FAILING, "memory is bad")
        until(lambda: "a: alert/Uncorrected: failing" in log.read_text(), "the webhook's line")
        done = site.guard("health", "--json")
        assert done.returncode == 3, done.stdout
        web.memory(0, 0)

        def over() -> bool:
            found = said("alertmanager", [host("a")], past, url=web.alertmanager)
            return found["a", "alert/Uncorrected"].level is OK

        # Chatter's severity means nothing, so the only alert of this host is over.
        assert alert() is not None
        until(over, "the end of the alert")
        until(lambda: "alert/Uncorrected: ok: resolved" in log.read_text(), "its end by webhook")
    # Failing until somebody clears it; then nothing is held against it.
    assert site.guard("health").returncode == 3
    assert site.guard("clear", "a").returncode == 0
    assert site.guard("health").returncode == 0


def post(url: str, body: bytes, token: str = "") -> int:
    request = urllib.request.Request(url, body)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as fault:
        return fault.code


def test_webhook_refuses_what_is_no_alert(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert "put the line [sources.webhook] into" in site.guard("webhook").stderr
    assert site.guard("webhook", "--listen", "here").returncode == 2
    (tmp_path / "token").write_text("geheim\n")
    site.settings(f'[sources.webhook]\ntoken_file = "{tmp_path}/token"')
    port, log = free_port(), tmp_path / "log"
    words = [sys.executable, "-m", "ivc_host", "guard", "webhook"]
    words += ["--inventory", str(tmp_path / "hosts.toml"), "--listen", f"127.0.0.1:{port}"]
    url = f"http://127.0.0.1:{port}/"
    alert = {"labels": {"alertname": "X", "instance": "a", "severity": "warning"}}
    good = json.dumps({"alerts": [alert, {}, 7, {"labels": 3}]}).encode()
    with running(*words, log=log):
        until(lambda: "listening" in log.read_text(), "the webhook")
        assert post(url, good) == 401 and post(url, good, "falsch") == 401
        assert post(url, b"{", "geheim") == 400 and post(url, b"[]", "geheim") == 400
        assert post(url, good, "geheim") == 200
    assert "a: alert/X: warning: X" in log.read_text()
    assert site.guard("health").returncode == 4


def test_messages_that_are_none() -> None:
    assert alerts_of(b'{"alerts": [1]}') == [1]
    for body in (b"\xff", b"[]", b"{}", b'{"alerts": 1}'):
        with pytest.raises(HealthError):
            alerts_of(body)


def test_whose_a_label_is() -> None:
    hosts = owners([host("alpha"), host("beta", aliases=["10.0.0.2", "b:9100", "::1"])])
    known = {name: found.name if (found := owner(hosts, name)) else None for name in (
        "alpha", "alpha:9100", "alpha.example.org:9100", "10.0.0.2:9100", "b:9100", "[::1]:9100",
        "b", "10.0.0.3", "10:9100", "gamma", "",
    )}  # fmt: skip
    assert known == {
        "alpha": "alpha", "alpha:9100": "alpha", "alpha.example.org:9100": "alpha",
        "10.0.0.2:9100": "beta", "b:9100": "beta", "[::1]:9100": "beta",
        "b": None, "10.0.0.3": None, "10:9100": None, "gamma": None, "": None,
    }  # fmt: skip


class Canned:
    """A server that answers each path with a status and a body, and notes what it was sent."""

    def __init__(self, answers: dict[str, tuple[int, str]]) -> None:
        import http.server
        import threading

        canned = self
        self.asked: list[tuple[str, str]] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.split("?")[0]
                canned.asked.append((path, self.headers.get("Authorization", "")))
                code, body = answers.get(path, (404, "{}"))
                self.send_response(code)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: Any) -> None:
                del format, args

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def canned(answers: dict[str, tuple[int, str]]) -> Iterator[Canned]:
    server = Canned(answers)
    try:
        yield server
    finally:
        server.close()


def vector(at: float, value: str = "1") -> str:
    one = {"metric": {"instance": "a"}, "value": [at, value]}
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": [one]}})


@pytest.mark.parametrize(
    ("code", "body", "text"),
    [
        (401, "who are you", "it does not let us in (401); look at user, password_file"),
        (503, '{"error": "starting"}', "status 503: starting"),
        (200, "<html>", "status 200, and no JSON"),
        (200, "[]", "not what Prometheus answers to a query: up"),
        (200, '{"data": {"resultType": "scalar", "result": [1, "1"]}}', "not what Prometheus"),
        (200, vector(time.time(), "many"), "not what Prometheus answers"),
        (
            200,
            vector(time.time() + 500),
            " s from this machine's; let both follow the same time server",
        ),
    ],
)
def test_what_prometheus_may_answer(past: PastFile, code: int, body: str, text: str) -> None:
    with canned({"/api/v1/query": (code, body)}) as server:
        found = said("prometheus", [host("a")], past, url=server.url)
    assert list(found) == [("a", "")] and found["a", ""].level is UNKNOWN
    assert text in found["a", ""].text


def test_credentials_are_sent(past: PastFile, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("geheim\n")
    secret = str(tmp_path / "secret")
    with canned({"/api/v2/alerts": (200, "[]")}) as server:
        said("alertmanager", [host()], past, url=server.url, token_file=secret)
        said("alertmanager", [host()], past, url=server.url, user="u", password_file=secret)
        assert [how for _, how in server.asked] == ["Bearer geheim", "Basic dTpnZWhlaW0="]
        found = said("alertmanager", [host()], past, url=server.url, token_file="/none")
        assert found["a", ""].text == f"{server.url}: cannot read /none: No such file or directory"
        found = said("alertmanager", [host()], past, url=server.url, ca_file="/none")
        assert "cannot read /none" in found["a", ""].text


def test_servers_that_are_not_there(past: PastFile) -> None:
    port = free_port()
    for name in ("prometheus", "alertmanager"):
        found = said(name, [host()], past, url=f"http://127.0.0.1:{port}")
        assert found["a", ""].level is UNKNOWN and f"127.0.0.1:{port}" in found["a", ""].text
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        found = said("prometheus", [host()], past, url=url, timeout=0.3)
        assert "no answer" in found["a", ""].text
    found = said("prometheus", [host()], past, url="ftp://x")
    assert found["a", ""].level is UNKNOWN


_IPMI = """
name "guard"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  user 2 true "ivc" "geheim" admin 10 none md2 md5 straight
"""
#: A controller with a temperature, which is not critical from 0x70, critical from 0x90 on.
_CONTROLLER = """
mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02
sel_enable 0x20 1000 0x0a
sensor_add 0x20 0 1 0x01 0x01
sensor_set_value 0x20 0 1 0x30 0
sensor_set_threshold 0x20 0 1 settable 111000 0xa0 0x90 0x70 0 0 0
sensor_set_event_support 0x20 0 1 enable scanning per-state {0} {0} {0} {0}
main_sdr_add 0x20 0 0 0x51 0x01 0x30 0x20 0 1 3 1 0x7f 0x68 1 1 0x80 0x0a 0x80 0x0a 0x38 0x38 \
0 1 0 0 1 0 0 0 0 0 0 0x60 0xb0 0 0xff 0 0xa0 0x90 0x70 0 0 0 0 0 0 0 0 0xc5 0x54 0x65 0x6d 0x70 0x31
mc_enable 0x20
""".format("000101010000000")


@dataclass
class Controller:
    """OpenIPMI's simulator."""

    folder: Path
    port: int
    process: subprocess.Popen[str]

    def do(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def host(self, password: str = "geheim") -> HostFiles:
        (self.folder / "password").write_text(f"{password}\n")
        return host(bmc={"ipmi": f"127.0.0.1:{self.port}", "ipmi_cipher": 3, "user": "ivc",
                         "password_file": str(self.folder / "password")})  # fmt: skip

    def ask(self, *words: str) -> bool:
        known = f"-C 3 -R 1 -N 1 -I lanplus -H 127.0.0.1 -p {self.port} -U ivc -P geheim".split()
        command = ["ipmitool", *known, *words]
        return subprocess.run(command, capture_output=True, timeout=20).returncode == 0


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    port = free_port(socket.SOCK_DGRAM)
    (tmp_path / "lan.conf").write_text(_IPMI.format(port=port))
    (tmp_path / "controller").write_text(_CONTROLLER)
    (tmp_path / "state").mkdir()
    words = ["ipmi_sim", "-c", "lan.conf", "-f", "controller", "-s", "state"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True
        )
    try:
        one = Controller(tmp_path, port, process)
        until(lambda: one.ask("mc", "info"), "ipmi_sim")
        yield one
    finally:
        process.kill()
        process.communicate()


@needs("ipmi_sim", "ipmitool")
def test_ipmi(controller: Controller, past: PastFile) -> None:
    def ask() -> dict[str, Reading]:
        return {item: one for (_, item), one in
                said("ipmi", [controller.host()], past, timeout=20).items()}  # fmt: skip

    found = ask()
    assert (found["temperature/Temp1"].level, found["temperature/Temp1"].value) == (OK, 48)
    assert found["log/sel"].level is UNKNOWN  # nobody has set its clock
    assert controller.ask("sel", "time", "set", "now")
    assert ask()["log/sel"].level is OK
    controller.do("sensor_set_value 0x20 0 1 0x75 0")
    assert until(lambda: (one := ask()["temperature/Temp1"]).level is WARNING and one, "warm")
    controller.do("sensor_set_value 0x20 0 1 0x95 0")
    hot = until(lambda: (one := ask()["temperature/Temp1"]).level is FAILING and one, "hot")
    assert hot.text.startswith("149 degrees C, beyond its limit (")
    controller.do("sel_add 0x20 0x02 0 0 0 0 0x20 0 4 0x0c 5 0x6f 0xa1 0xff 0xff")
    event = until(lambda: (one := ask()["log/sel"]).level is FAILING and one, "the event")
    assert event.text == "Memory #0x05 Uncorrectable ECC Asserted"


@needs("ipmi_sim", "ipmitool")
def test_ipmi_that_does_not_let_us_in(controller: Controller, past: PastFile) -> None:
    found = said("ipmi", [controller.host(password="falsch")], past)
    assert found["a", ""].level is UNKNOWN and "Unable to establish" in found["a", ""].text
