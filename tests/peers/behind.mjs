// A web server of Node's own kind, and with "ws" a WebSocket server, as backend of the checks.
//
//   behind.mjs PORT NAME
//
// Found beside the packages that tests/run puts into target/node: the caller sets that as working folder.
import { createHash } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";

const [port, name] = process.argv.slice(2);
const events = []; // answers that wait for their second event

const server = createServer((request, answer) => {
  const path = request.url.split("?")[0];
  if (path === "/events") {
    answer.writeHead(200, { "content-type": "text/event-stream" });
    answer.write("data: first\n\n");
    events.push(answer);
  } else if (path === "/go") {
    for (const waiting of events.splice(0)) waiting.end("data: second\n\n");
    answer.end("gone\n");
  } else if (path === "/trailers") {
    answer.writeHead(200, { trailer: "x-sum" });
    answer.write("body\n");
    answer.addTrailers({ "x-sum": "right" });
    answer.end();
  } else if (path === "/echo") {
    request.pipe(answer);
  } else if (path === "/never") {
    // The client's patience is what is tried.
  } else {
    const hash = createHash("sha256");
    let size = 0;
    request.on("data", (part) => { size += part.length; hash.update(part); });
    request.on("end", () => {
      const text = JSON.stringify({
        name, method: request.method, url: request.url, version: request.httpVersion, headers: request.headers,
        size, sha256: hash.digest("hex"), trailers: request.trailers,
      }) + "\n";
      answer.writeHead(200, { "content-type": "application/json", "content-length": text.length, allow: "GET, POST" });
      answer.end(text);
    });
  }
});

try {
  const { WebSocketServer } = createRequire(process.cwd() + "/")("ws");
  const sockets = new WebSocketServer({ server, perMessageDeflate: { threshold: 0 }, maxPayload: 1 << 23 });
  sockets.on("connection", (socket, request) => {
    socket.on("error", () => {}); // Its own close frame has told the client what was wrong.
    socket.on("message", (data, binary) => {
      if (!binary && String(data) === "who") {
        socket.send(JSON.stringify({ headers: request.headers, extensions: socket.extensions }));
      } else {
        socket.send(data, { binary });
      }
    });
  });
} catch (missing) {
  console.log("without ws:", missing.message);
}
server.listen(Number(port), "127.0.0.1", () => console.log("listening"));
