// The engine's worker: boots Pyodide, then serves the page's messages.
import { loadPyodide } from "../python/pyodide.mjs";
const t = [performance.now()];
const pyodide = await loadPyodide({ indexURL: new URL("../python/", import.meta.url).href });
t.push(performance.now());
await pyodide.loadPackage(["numpy", "jinja2", "markupsafe", "zllm"], { messageCallback() {} });
t.push(performance.now());
await pyodide.runPythonAsync("import numpy");
t.push(performance.now());
await pyodide.runPythonAsync("import zllm.embedded");
t.push(performance.now());
postMessage(t);
