// WebSockets of the npm package ws, as client: large, in fragments, compressed, with a subprotocol.
//
//   sockets.mjs URL CA-FILE
//
// Found beside the packages that tests/run puts into target/node: the caller sets that as working folder.
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { WebSocket } = createRequire(process.cwd() + "/")("ws");
const [url, file] = process.argv.slice(2);
const ca = readFileSync(file);

function fail(reason) {
  console.log("failed:", reason);
  process.exit(1);
}
setTimeout(() => fail("timeout"), 15000);

function once(socket, event) {
  return new Promise((resolve, reject) => {
    socket.once(event, (...all) => resolve(all));
    socket.once("error", reject);
    if (event !== "close") socket.once("close", () => reject(new Error("closed")));
  });
}

async function echo(socket, name, ...parts) {
  const whole = Buffer.concat(parts.map((part) => Buffer.from(part)));
  parts.forEach((part, at) => socket.send(part, { fin: at === parts.length - 1, binary: true }));
  const [data] = await once(socket, "message");
  if (!data.equals(whole)) throw new Error(`${name}: other bytes came back`);
  console.log("echoed:", name, whole.length);
}

try {
  for (const perMessageDeflate of [false, { threshold: 0 }]) {
    const socket = new WebSocket(url, ["other", "xmpp"], { ca, perMessageDeflate });
    await once(socket, "open");
    console.log("open:", JSON.stringify(socket.protocol), JSON.stringify(socket.extensions));
    await echo(socket, "small", "hello");
    await echo(socket, "large", randomBytes(1 << 20));
    await echo(socket, "compressible", Buffer.alloc(1 << 20, "chat "));
    await echo(socket, "fragmented", ...Array.from({ length: 50 }, () => randomBytes(1000)));
    const pong = once(socket, "pong");
    socket.ping("are you there");
    const [data] = await pong;
    console.log("pong:", String(data));
    socket.close(4321, "enough");
    const [code, reason] = await once(socket, "close");
    console.log("closed:", code, String(reason));
  }
  process.exit(0);
} catch (error) {
  fail(error.message);
}
