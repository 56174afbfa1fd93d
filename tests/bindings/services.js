// Drives one example service in a headless browser: node services.js URL CHROMIUM
'use strict';

const assert = require('node:assert');
const puppeteer = require('puppeteer-core');

const LIMIT_MS = 30_000;
const STORY = 'Tell me a very long story about a ship and its crew.';
const PLACES = 8;


async function main(url, executablePath) {
  const stats = async () => (await fetch(`${url}/stats`)).json();
  const idleAfter = async (aborts) => {
    for (const end = Date.now() + LIMIT_MS; ; ) {
      const seen = await stats();
      if (seen.num_running + seen.num_waiting === 0 && seen.finished_total.abort === aborts) return;
      assert.ok(Date.now() < end, `not idle after ${aborts} cancellations: ${JSON.stringify(seen)}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  };
  const browser = await puppeteer.launch({ executablePath, args: ['--no-sandbox'] });

  // Opens the page, asks, and waits until the text has grown several times.
  async function asking() {
    const page = await browser.newPage();
    await page.goto(url);
    await page.evaluate(() => {
      window.growths = 0;
      new MutationObserver(() => window.growths++).observe(document.getElementById('answer'), { childList: true });
    });
    await page.type('#question', STORY);
    await page.click('#ask');
    await page.waitForFunction(() => window.growths >= 6, { timeout: LIMIT_MS });
    assert.strictEqual((await stats()).num_running, 1, 'the answer still comes');
    return page;
  }

  const closed = await asking();
  await closed.close();
  await idleAfter(1);
  const stopped = await asking();
  await stopped.click('#stop');
  await idleAfter(2);
  const text = await stopped.$eval('#answer', (answer) => answer.textContent);
  assert.ok(text.length > 10, text);
  await browser.close();

  await limits(url);
  await idleAfter(2 + PLACES);
}

async function limits(url) {
  const post = (body, signal) =>
    fetch(`${url}/answer`, { method: 'POST', body, signal, headers: { 'Content-Type': 'application/json' } });
  assert.strictEqual((await post('{')).status, 400);
  assert.strictEqual((await post('{"messages": []}')).status, 400);
  assert.ok([400, 413].includes((await post(`"${'x'.repeat(100_000)}"`)).status));
  const gone = new AbortController();
  const body = JSON.stringify({ messages: [{ role: 'user', content: STORY }] });
  const answers = await Promise.all(Array.from({ length: PLACES + 4 }, () => post(body, gone.signal)));
  const codes = answers.map((answer) => answer.status).sort();
  assert.deepStrictEqual(codes, [...Array(PLACES).fill(200), ...Array(4).fill(429)]);
  gone.abort();
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
