// Chromium with a page whose function talk(URL, ADDRESS) is called for each of TALKS, one after another.
//
//   browser.mjs PAGE '[["URL", "ADDRESS"], ...]'
//
// Names under .test lead to loopback. Pictures of the pages go to the folder PEERS_SHOTS, if set. Found beside the packages that tests/run puts into target/node: the caller
// sets that as working folder.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const packages = createRequire(process.cwd() + "/");
const { default: puppeteer } = await import(pathToFileURL(packages.resolve("puppeteer-core")));
const [page, talks] = process.argv.slice(2);
const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  headless: true,
  args: [
    "--no-sandbox", "--disable-dev-shm-usage", "--ignore-certificate-errors",
    "--host-resolver-rules=MAP *.test 127.0.0.1",
  ],
});
let code = 0, shots = 0;
try {
  for (const [url, address] of JSON.parse(talks)) {
    const tab = await browser.newPage();
    tab.on("pageerror", (error) => console.log("page error:", error.message));
    const answer = await tab.goto(page);
    console.log("page:", answer.status());
    await tab.waitForFunction(() => window.talk);
    console.log(url, (await tab.evaluate((...both) => window.talk(...both), url, address)).join(" "));
    if (process.env.PEERS_SHOTS) await tab.screenshot({ path: `${process.env.PEERS_SHOTS}/${shots++}.png` });
    await tab.close();
  }
} catch (error) {
  console.log("failed:", error.message);
  code = 1;
} finally {
  await browser.close();
}
process.exit(code);
