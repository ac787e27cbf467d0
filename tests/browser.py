"""A real Chromium without a window, driven by its DevTools protocol through two pipes.

    python -m tests.browser PAGE PICTURE

takes a picture of the page that examples/in_the_browser.py has written, after three clicks.
"""

import base64
import contextlib
import json
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Seconds in which the browser answers or ends, also on a busy machine.
PATIENCE = 60
# What can be liked.
CHOICES = "[...document.querySelectorAll('#choices button')]"


class Browser:
    """A page of Chromium; `events` is all that it has reported."""

    def __init__(self, width=1280, height=800):
        self._folder = tempfile.TemporaryDirectory()
        (theirs, self._to), (self._from, back) = os.pipe(), os.pipe()
        command = [
            shutil.which("chromium"),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._folder.name}",
            f"--window-size={width},{height}",
        ]
        # The browser reads file 3 and writes file 4.
        line = f"exec {shlex.join(command)} 3<&{theirs} 4>&{back}"
        self._process = subprocess.Popen(
            ["bash", "-c", line], pass_fds=[theirs, back], stderr=subprocess.DEVNULL
        )
        os.close(theirs)
        os.close(back)
        self._number, self._session, self._unread, self.events = 0, {}, b"", []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        answer = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": answer["sessionId"]}
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.send(f"{domain}.enable")
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._session = {}
        try:
            self.send("Browser.close")
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
            self._process.kill()
            self._process.wait()
            os.close(self._to)
            os.close(self._from)
            self._folder.cleanup()

    def send(self, method, **parameters):
        """Return the answer to a command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        answer = self._read(lambda message: message.get("id") == self._number)
        assert "error" not in answer, answer
        thrown = [one for one in self.events if one["method"] == "Runtime.exceptionThrown"]
        assert not thrown, thrown
        return answer["result"]

    def open(self, url):
        """Open a page, and wait until all of it is there."""
        self.events.clear()
        self.send("Page.navigate", url=url)
        if "Page.loadEventFired" not in self.named():
            self._read(lambda message: message.get("method") == "Page.loadEventFired")

    def named(self):
        """Return the names of the events."""
        return [event["method"] for event in self.events]

    def value(self, expression):
        """Return the value of an expression in the page."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, expression):
        """Click in the middle of an element."""
        box = f"(({expression}).scrollIntoView({{block: 'center'}}), ({expression}))"
        x, y = self.value(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
            f"({box}.getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key, code):
        """Press a key and let it go."""
        for kind in ("rawKeyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def picture(self):
        """Return a PNG of what a user sees."""
        return base64.b64decode(self.send("Page.captureScreenshot")["data"])

    def _read(self, is_awaited):
        """Return the next message that is awaited; keep events before it, and it if it is one."""
        while True:
            while b"\0" not in self._unread:
                assert select.select([self._from], [], [], PATIENCE)[0], "the browser is silent"
                part = os.read(self._from, 2**16)
                assert part, "the browser has ended"
                self._unread += part
            message, _, self._unread = self._unread.partition(b"\0")
            content = json.loads(message)
            if "method" in content:
                self.events.append(content)
            if is_awaited(content):
                return content


def main(page, picture):
    """Take a picture of a page."""
    with Browser(1000, 790) as browser:
        browser.open(Path(page).resolve().as_uri())
        for place in (1, 5, 7):
            browser.click(f"{CHOICES}[{place}]")
        browser.value("scrollTo(0, 0)")
        Path(picture).write_bytes(browser.picture())


if __name__ == "__main__":
    main(*sys.argv[1:])
