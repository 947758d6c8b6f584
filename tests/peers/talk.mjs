// @xmpp/client: logs in, gets the roster, sends itself a message and waits for it.
//
//   talk.mjs URL DOMAIN USER [stay]
//
// With "stay" it stays online until its standard input ends, and says again when it went online.
// Found beside the packages that tests/run puts into target/node: the caller sets that as working folder.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

process.env.NODE_TLS_REJECT_UNAUTHORIZED = "0"; // A certificate that nobody signed.
const packages = createRequire(process.cwd() + "/");
globalThis.WebSocket ??= packages("ws"); // Node has one of its own from version 22 on.
const { client, xml } = await import(pathToFileURL(packages.resolve("@xmpp/client")));
const [url, domain, username, stay] = process.argv.slice(2);
const text = `heard by @xmpp/client ${Math.random()}`;

const user = client({ service: url, domain, username, password: "secret1" });
user.reconnect.stop();
function fail(reason) {
  console.log("failed:", reason);
  process.exit(1);
}
if (stay) {
  process.stdin.on("end", () => process.exit(0)).resume();
} else {
  setTimeout(() => fail("timeout"), 10000);
}
// One that stays is told of the end by errors, too, and goes on.
user.on("error", (error) => (stay ? console.log("error:", error.message) : fail(error.message || error.name)));
user.on("stanza", async (stanza) => {
  if (stanza.is("message") && stanza.getChildText("body") === text) {
    console.log("heard:", text);
    if (stay) return;
    await user.stop();
    process.exit(0);
  }
});
user.on("online", async (address) => {
  console.log("online:", String(address));
  await user.iqCaller.get(xml("query", "jabber:iq:roster"));
  await user.send(xml("message", { to: String(address), type: "chat" }, xml("body", {}, text)));
});
user.start().catch((error) => fail(error.message));
