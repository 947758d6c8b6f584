"""Chat in web pages through an https listener: BOSH and WebSocket to Prosody and ejabberd, by hand, with @xmpp/client,
and with strophe.js and converse.js in Chromium."""

import base64
import http.client
import itertools
import json
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import servers
from gates import HERE, NODE, Two, context, gate, nginx, packages
from harness import check, expect, expect_equal, expect_in, listening, port, until
from servers import PASSWORD

BOTH = ("root", "prosody", "ejabberdctl", "openssl")
PATHS = {"Prosody": ("/http-bind", "/xmpp-websocket"), "ejabberd": ("/bosh", "/ws")}


def each_server():
    return servers.prosody(), servers.ejabberd()


def chat_gate(scope, app=None, flags=()):
    """Vestibule with routes to both servers; everything else goes to the port `app`."""
    more = ""
    for server in each_server():
        more += (
            f'[[route]]\npaths = {json.dumps(PATHS[server.name])}\nupstream = "{server.name}"\n'
            f'[[upstream]]\nname = "{server.name}"\nbackend = [{{ address = "127.0.0.1:{server.doors["http"]}" }}]\n'
        )
    return gate(scope, app or port(), more=more, flags=flags)


class Session:
    """A BOSH session over HTTP/1.1; one connection for each request that is held at once."""

    def __init__(self, scope, gate, server):
        self.scope, self.gate, self.server = scope, gate, server
        self.path = PATHS[server.name][0]
        self.rid = itertools.count(random.randrange(1 << 40))
        self.sid = ""
        self.free = []

    def send(self, attributes="", inner=""):
        """Sends a request and returns what `answer` wants. It waits until the server has it, since the next one may
        take another connection and come first."""
        rid = next(self.rid)
        body = (
            f"<body rid='{rid}' xmlns='http://jabber.org/protocol/httpbind' {self.sid} {attributes}>"
            f"{inner}</body>"
        )
        seen = self.server.mark()
        sent = self.request(body.encode(), {"Content-Type": "text/xml; charset=utf-8"})
        self.server.wait_log(seen, f"<body rid='{rid}' ")
        return sent

    def request(self, body, headers):
        connection = self.free.pop() if self.free else http.client.HTTPSConnection(
            "127.0.0.1", self.gate.port, timeout=15, context=context("http/1.1")
        )
        self.scope.callback(connection.close)
        connection.request("POST", self.path, body, {"Host": f"chat.test:{self.gate.port}", **headers})
        return connection

    def answer(self, connection):
        answer = connection.getresponse()
        text = answer.read().decode()
        expect_equal(answer.status, 200, f"status of {self.server.name}, which said {text!r}")
        self.free.append(connection)
        return text

    def ask(self, attributes="", inner=""):
        return self.answer(self.send(attributes, inner))

    def login(self, user):
        version = "xmlns:xmpp='urn:xmpp:xbosh'"
        hello = self.ask(f"to='{self.server.host}' wait='5' hold='1' ver='1.6' xmpp:version='1.0' {version}")
        found = re.search(" sid=['\"]([^'\"]+)", hello).group(1)
        self.sid = f"sid='{found}'"
        if "mechanism" not in hello:
            hello = self.ask()
        expect_in("PLAIN", hello, f"what {self.server.name} offers")
        secret = base64.b64encode(f"\0{user}\0{PASSWORD}".encode()).decode()
        told = self.ask(inner=f"<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' mechanism='PLAIN'>{secret}</auth>")
        expect_in("<success", told, f"login at {self.server.name}")
        told = self.ask(f"to='{self.server.host}' xmpp:restart='true' {version}")
        expect_in("urn:ietf:params:xml:ns:xmpp-bind", told, f"what {self.server.name} offers then")
        told = self.ask(
            inner="<iq xmlns='jabber:client' type='set' id='b'><bind xmlns='urn:ietf:params:xml:ns:xmpp-bind'/></iq>"
        )
        return re.search("<jid>([^<]+)</jid>", told).group(1)


class SessionOfTwo(Session):
    """The same over one HTTP/2 connection."""

    def __init__(self, scope, gate, server):
        super().__init__(scope, gate, server)
        self.two = Two(scope, gate, host="chat.test")

    def request(self, body, headers):
        more = [("content-length", str(len(body))), *((name.lower(), value) for name, value in headers.items())]
        number = self.two.open(self.path, end=False, method="POST", more=more)
        self.two.send(number, body, end=True)
        return number

    def answer(self, number):
        self.two.until(lambda: self.two.streams[number][2], "a BOSH answer")
        status, text, _ = self.two.streams.pop(number)
        expect_equal(status, 200, f"status of {self.server.name}, which said {text!r}")
        return text.decode()


def whole_session(session):
    name = session.server.name
    address = session.login("alice")
    started = time.monotonic()
    told = session.ask()
    held = time.monotonic() - started
    expect(4.5 < held < 7, f"a poll at {name} was held for {held:.1f} s instead of 5: {told}")
    waiting = session.send()
    message = f"<message xmlns='jabber:client' type='chat' to='{address}'><body>to myself</body></message>"
    second = session.send(inner=message)
    started = time.monotonic()
    told = session.answer(waiting)
    expect(time.monotonic() - started < 4, f"a poll at {name} was held although another came")
    while "to myself" not in told:  # Which answer brings it is the server's choice.
        expect(time.monotonic() - started < 20, f"{name} brings no message")
        waiting, second = second, session.send()
        told = session.answer(waiting)
    # The end of the session ends what is held, too.
    session.ask("type='terminate'")
    session.answer(second)


@check("BOSH by HTTP/1.1 and 2: a poll is held for 5 s, or until a second request brings a message", needs=BOTH)
def polls(scope):
    web = chat_gate(scope)
    sessions = [kind(scope, web, server) for kind in (Session, SessionOfTwo) for server in each_server()]
    with ThreadPoolExecutor(len(sessions)) as pool:
        for done in [pool.submit(whole_session, session) for session in sessions]:
            done.result()


@check("@xmpp/client by WebSocket: login, roster, message", needs=(*BOTH, "node"))
def client(scope):
    packages("@xmpp/client")
    web = chat_gate(scope)
    for server in each_server():
        url = f"wss://127.0.0.1:{web.port}{PATHS[server.name][1]}"
        code, text = scope.run("node", HERE / "talk.mjs", url, server.host, "bob", cwd=NODE)
        expect_equal(code, 0, f"@xmpp/client, {server.name}: {text[-2000:]}")
        expect_in("heard:", text, server.name)


PAGE = """<!doctype html><title>chat</title><script src="strophe.umd.min.js"></script><script>
window.talk = (url, address) => new Promise((resolve) => {
  const { Strophe, $iq, $msg, $pres } = window.strophe || window;
  const connection = new Strophe.Connection(url), told = [];
  const end = setTimeout(() => resolve([...told, "TIMEOUT"]), 12000);
  const text = `said by strophe.js ${Math.random()}`;
  connection.connect(address, "secret1", (status, condition) => {
    told.push(Object.keys(Strophe.Status).find((name) => Strophe.Status[name] === status));
    if (condition) told.push(`(${condition})`);
    if (status === Strophe.Status.CONNECTED) {
      connection.addHandler((stanza) => {
        const body = stanza.getElementsByTagName("body")[0];
        if (body && body.textContent === text) { told.push("heard"); connection.disconnect("enough"); }
        return true;
      }, null, "message");
      connection.sendIQ($iq({ type: "get" }).c("query", { xmlns: "jabber:iq:roster" }), () => {
        told.push("roster");
        connection.send($pres());
        connection.send($msg({ to: connection.jid, type: "chat" }).c("body").t(text));
      }, () => told.push("no roster"), 5000);
    } else if (status === Strophe.Status.DISCONNECTED || status === Strophe.Status.CONNFAIL) {
      clearTimeout(end);
      resolve(told);
    }
  });
});
</script>"""


CONVERSE = """<!doctype html><title>chat</title><link rel="stylesheet" href="converse.min.css">
<body class="converse-fullscreen"><script type="module">
await import("./converse.min.js");
window.talk = (url, address) => new Promise((resolve) => {
  const told = [], text = `said by converse.js ${Math.random()}`;
  const done = (...words) => resolve([...told, ...words]);
  setTimeout(() => done("TIMEOUT"), 15000);
  converse.plugins.add("told", { initialize() {
    const { api } = this._converse;
    for (const event of ["connected", "disconnected"]) api.listen.on(event, () => told.push(event));
    api.listen.on("rosterContactsFetched", async () => {
      told.push("roster");
      const { Strophe, $msg, sizzle } = converse.env, own = this._converse.session.get("jid");
      api.listen.on("message", ({ stanza }) => {
        if (sizzle("body", stanza).some((body) => body.textContent === text)) done("heard");
      });
      await api.chats.open(Strophe.getBareJidFromJid(own));
      api.send($msg({ to: own, from: own, type: "chat" }).c("body").t(text));
    });
  } });
  converse.initialize({
    [url.startsWith("wss:") ? "websocket_url" : "bosh_service_url"]: url, jid: address, password: "secret1",
    authentication: "login", auto_login: true, view_mode: "fullscreen", discover_connection_methods: false,
    whitelisted_plugins: ["told"], assets_path: "/", i18n: "en", clear_cache_on_logout: true,
  });
});
</script>"""


def in_browser(scope, page, files, wanted):
    """Chromium with `page` and `files` of packages, through the listener that the chat goes through, too: each server
    by WebSocket and BOSH. What the page tells must match `wanted`. Returns the access log."""
    packages("puppeteer-core")
    number = port()
    nginx(
        scope, f"include /etc/nginx/mime.types; server {{{{ listen 127.0.0.1:{number}; root {{folder}}/www; }}}}",
        [("index.html", page.encode()), *((path.name, path.read_bytes()) for path in files)],
    )
    until(lambda: listening(number), "nginx")
    access = scope.folder() / "access.log"
    web = chat_gate(scope, number, ("--access-log", access))
    where = f"chat.test:{web.port}"
    talks = []
    for server in each_server():
        bosh, websocket = PATHS[server.name]
        talks += [[f"wss://{where}{websocket}", f"bob@{server.host}"], [f"https://{where}{bosh}", f"bob@{server.host}"]]
    code, text = scope.run("node", HERE / "browser.mjs", f"https://{where}/", json.dumps(talks), cwd=NODE)
    expect_equal(code, 0, f"exit code of the browser, which said {text[-3000:]}")
    for url, _ in talks:
        expect(re.search(f"{re.escape(url)}.* {wanted}", text), f"no chat by {url}:\n{text}")
    return access


@check("strophe.js in Chromium, page and chat through one listener: login, roster, message", needs=(
    *BOTH, "node", "nginx", "chromium",
))
def strophe(scope):
    packages("strophe.js")
    library = NODE / "node_modules" / "strophe.js" / "dist" / "strophe.umd.min.js"
    access = in_browser(scope, PAGE, [library], "CONNECTED .*roster .*heard")
    # A browser that has loaded the page by HTTP/2 opens its WebSockets on the same connection (RFC 8441).
    for server in each_server():
        asked = f"kind=request .* version=2 method=CONNECT .* path={PATHS[server.name][1]} status=200 "
        until(lambda: re.search(asked, access.read_text()), f"{asked} in\n{access.read_text()}")


@check("converse.js in Chromium: login, roster, message", needs=(*BOTH, "node", "nginx", "chromium"))
def converse(scope):
    packages("converse.js")
    folder = NODE / "node_modules" / "converse.js" / "dist"
    files = [folder / name for name in ("converse.min.js", "converse.min.css", "emoji.json")]
    in_browser(scope, CONVERSE, files, "connected .*roster .*heard")
