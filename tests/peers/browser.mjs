// Chromium with a page whose function talk(URL, ADDRESS) is called for each of TALKS, one after another.
//
//   browser.mjs PAGE '[["URL", "ADDRESS"], ...]'
//
// Names under .test lead to loopback. Found beside the packages that tests/run puts into target/node: the caller
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
let code = 0;
try {
  const tab = await browser.newPage();
  const answer = await tab.goto(page);
  console.log("page:", answer.status());
  for (const [url, address] of JSON.parse(talks)) {
    console.log(url, (await tab.evaluate((...both) => window.talk(...both), url, address)).join(" "));
  }
} catch (error) {
  console.log("failed:", error.message);
  code = 1;
} finally {
  await browser.close();
}
process.exit(code);
