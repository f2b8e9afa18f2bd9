// Runs pytest inside a module worker: {site, zips: [url], args} in, one message per test out.
import { openGpu } from "/engine/gpu.js";

onmessage = async ({ data: { zips, args, env } }) => {
  try {
    const { loadPyodide } = await import("/python/pyodide.mjs");
    const indexURL = new URL("/python/", self.location.href).href;
    const pyodide = await loadPyodide({ indexURL, packages: ["zllm"], env });
    pyodide.registerJsModule("zllm_page", {
      openGpu: () => openGpu(() => pyodide._module.HEAPU8, () => null),
      heapBytes: () => pyodide._module.HEAPU8.length,
      report: text => postMessage({ report: text }),
    });
    for (const [url, where] of zips) {
      pyodide.unpackArchive(await (await fetch(url)).arrayBuffer(), "zip", { extractDir: where });
    }
    pyodide.globals.set("args", pyodide.toPy(args));
    const code = await pyodide.runPythonAsync(`
import sys
sys.path.insert(0, "/suite")
from tests.browser.worker.collector import run
run(args)
`);
    postMessage({ code });
  } catch (error) {
    postMessage({ error: String(error?.message ?? error) });
  }
};
