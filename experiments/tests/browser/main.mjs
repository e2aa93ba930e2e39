// Runs every check; says which failed and why.
import * as explorer from "./explorer.mjs";
import { Harness } from "./harness.mjs";
import * as looks from "./looks.mjs";
import * as report from "./report.mjs";

const harness = new Harness(...process.argv.slice(2));
let failed = 0;
const began = performance.now();
try {
  await harness.start();
  for (const [name, check] of Object.entries({ ...explorer, ...looks, ...report })) {
    const start = performance.now();
    harness.complaints = [];
    try {
      const note = await check(harness);
      if (harness.complaints.length > 0) throw new Error(harness.complaints.join("\n"));
      console.log(`ok    ${name} (${Math.round(performance.now() - start)} ms)${note ? `: ${note}` : ""}`);
    } catch (error) {
      failed += 1;
      console.log(`FAIL  ${name}: ${error.message}`);
    }
  }
} finally {
  await harness.stop();
}
console.log(`${failed === 0 ? "all passed" : `${failed} failed`} in ${((performance.now() - began) / 1000).toFixed(1)} s`);
process.exit(failed === 0 ? 0 : 1);
