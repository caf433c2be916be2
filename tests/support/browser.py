"""Headless Chromium, controlled over two pipes: the look of a page, and its console messages.

The protocol is JSON between null bytes (the DevTools protocol with `--remote-debugging-pipe`), so
no port and no package is needed.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The contrast of all text with its background, by WCAG 2's formula; values below 4.5 are returned.
_PALE = """(() => {
  const channel = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => .2126 * channel(c[0]) + .7152 * channel(c[1]) + .0722 * channel(c[2]);
  const numbers = text => {
    const found = text.match(/[\\d.]+(?:e-?\\d+)?/g).map(Number);
    return text.startsWith('rgb') ? found.map((v, at) => at < 3 ? v / 255 : v) : found;
  };
  const behind = node => {
    for (let at = node; at; at = at.parentElement) {
      const c = numbers(getComputedStyle(at).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [1, 1, 1];
  };
  const found = [];
  for (const node of document.querySelectorAll('body *:not(svg *):not(script)')) {
    if (![...node.childNodes].some(n => n.nodeType == 3 && n.data.trim())) continue;
    const [a, b] = [light(numbers(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) found.push(node.textContent.slice(0, 40) + ' ' + ratio.toFixed(2));
  }
  return found;
})()"""

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def found() -> str | None:
    """Return an installed browser of this family, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page at a time; `events` holds all events since `open`."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer, self._last, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method and wait for its result."""
        self._last += 1
        request = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._write, json.dumps(request).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._last:
                assert "error" not in message, (method, message)
                return message["result"]
            self.events.append(message)

    def open(self, path: Path, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Load a file and wait until it is complete."""
        self.shape(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(message.get("method") == "Page.loadEventFired" for message in self.events):
            self.events.append(self._next())

    def shape(self, width: int, height: int = 900) -> None:
        """Set the window's size in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)[
            "result"
        ].get("value")

    def pale(self) -> list[str]:
        """Return texts with too little contrast to their background, and their contrast."""
        return self.value(_PALE)

    def picture(self, *, whole: bool = False, **clip: float) -> bytes:
        """Return a PNG of the window, the whole page, or a rectangle (x, y, width, height)."""
        more: dict[str, Any] = {"clip": {**clip, "scale": 1}} if clip else {}
        if whole or clip:
            more["captureBeyondViewport"] = True
        return base64.b64decode(self.call("Page.captureScreenshot", **more)["data"])

    def paper(self) -> bytes:
        """Return the page as a PDF, by its own print style."""
        message = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        return base64.b64decode(message["data"])

    def complaints(self) -> list[str]:
        """Return the console's messages: errors, warnings, violations of the page's policy."""
        self.value("0")  # waits for pending events
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [json.dumps(e["params"]) for e in self.events if e.get("method") in kinds]

    def requests(self) -> list[str]:
        """Return every requested address."""
        asked = (t for t in self.events if t.get("method") == "Network.requestWillBeSent")
        return [message["params"]["request"]["url"] for message in asked]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 1 << 16)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)


@contextmanager
def browser(program: str) -> Iterator[Browser]:
    """Run a browser with a new profile; end it with the block."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = (
            f"exec 3<&{to_read} 4>&{from_write}; exec \"$@\"", "-", program, "--headless",
            "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--remote-debugging-pipe", f"--user-data-dir={profile}",
        )  # fmt: skip
        process = subprocess.Popen(
            ["bash", "-c", *command],
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        try:
            yield Browser(to_write, from_read)
        finally:
            os.close(to_write)
            os.close(from_read)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(120)
