"""Chromium, driven as a person uses it, by chromedriver's protocol (W3C WebDriver) alone."""

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # so that no request leaves the machine
]
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Left": "\ue012", "Up": "\ue013", "Right": "\ue014", "Down": "\ue015"}


def luminance(channels: Iterable[float]) -> float:
    """How bright a color is, of red, green and blue from 0 to 1."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


class Browser:
    """A session."""

    def __init__(self, url: str) -> None:
        self._url = url
        options = {"args": ["--headless=new", *FLAGS]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._url += f"/session/{session['sessionId']}"

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def open(self, path: Path) -> None:
        """Open a page, and wait until it has drawn itself."""
        self._send("POST", "/url", {"url": path.as_uri()})
        self.wait("return document.documentElement.dataset.ready === 'true'")

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page, and return what it returns."""
        return self._send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str) -> None:
        """Wait until a script returns true."""
        for _ in range(600):
            if self.run(script):
                return
            time.sleep(0.05)
        raise AssertionError(f"it never came true: {script}")

    def command(self, name: str, **parameters: Any) -> Any:
        """Send a command of the browser's own protocol."""
        return self._send("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def emulate(self, width: int, height: int, *, dark: bool = False, mobile: bool = False) -> None:
        """Take the place of a screen."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )
        self.command("Emulation.setTouchEmulationEnabled", enabled=mobile)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def pointer(self, selector: str, kind: str = "mouse", *, press: bool = False) -> None:
        """Move the mouse onto an element, or tap or click it."""
        found = self._send("POST", "/element", {"using": "css selector", "value": selector})
        moves: list[dict[str, Any]] = [{"type": "pointerMove", "origin": found, "x": 0, "y": 0, "duration": 0}]
        moves += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}] if press else []
        source = {"type": "pointer", "id": kind, "parameters": {"pointerType": kind}, "actions": moves}
        self._send("POST", "/actions", {"actions": [source]})

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        actions = [{"type": t, "value": KEYS.get(key, key)} for key in keys for t in ("keyDown", "keyUp")]
        self._send("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def complaints(self) -> list[str]:
        """What the page wrote to the console since the last time."""
        return [entry["message"] for entry in self._send("POST", "/se/log", {"type": "browser"})]

    def close(self) -> None:
        """End the session."""
        self._send("DELETE", "")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Chromium, or a skipped test where there is none."""
    driver = shutil.which("chromedriver")
    if driver is None or not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("no Chromium with chromedriver found; on Debian: apt install chromium-driver")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        session = Browser(f"http://127.0.0.1:{port}")
        try:
            yield session
        finally:
            session.close()
    finally:
        process.terminate()
        process.wait()
