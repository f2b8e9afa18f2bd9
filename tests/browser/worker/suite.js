// Runs Python that tests, in a module worker: {zips, code, args, env} in; a message per test out,
// then {value} or {error}.
import { openGpu } from "/engine/gpu.js";

onmessage = async ({ data: { zips, code, args, env } }) => {
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
    postMessage({ value: await pyodide.runPythonAsync(`import sys\nsys.path.insert(0, "/suite")\n${code}`) });
  } catch (error) {
    postMessage({ error: String(error?.message ?? error) });
  }
};
