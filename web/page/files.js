// Which models the files hold that a visitor picked or dropped.

const DEEPEST = 4; // folders in folders of a drop: a folder of models, or a hub's cache
const PART = /-\d{5}-of-\d{5}\.gguf$/i;
const last = path => path.split("/").pop();

/** [{path, file}] of an input's files. */
export const picked = files => [...files].map(file => ({ path: file.webkitRelativePath || file.name, file }));

/** [{path, file}] of a drop, with those in dropped folders. */
export async function dropped(transfer) {
  const found = [];
  const look = async (entry, depth) => {
    if (entry.isFile) {
      const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
      found.push({ path: entry.fullPath.slice(1), file });
    } else if (depth < DEEPEST) {
      const reader = entry.createReader();
      for (;;) {
        const more = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
        if (!more.length) break;
        for (const inner of more) await look(inner, depth + 1);
      }
    }
  };
  // A transfer is empty after the first wait.
  for (const entry of [...transfer.items].map(item => item.webkitGetAsEntry?.()).filter(Boolean)) await look(entry, 0);
  return found;
}

/** [{name, files}]: GGUF files, a split one as one, and folders with config.json and safetensors. */
export function modelsOf(found) {
  const folders = new Map();
  for (const { path, file } of found) {
    const folder = path.slice(0, Math.max(0, path.lastIndexOf("/")));
    folders.set(folder, [...folders.get(folder) ?? [], file]);
  }
  const models = [];
  for (const [folder, files] of folders) {
    const [ggufs, others] = [files.filter(({ name }) => /\.gguf$/i.test(name)), files.filter(({ name }) => !/\.gguf$/i.test(name))];
    if (others.some(({ name }) => name === "config.json") && others.some(({ name }) => name.endsWith(".safetensors"))) {
      models.push({ name: last(folder) || "picked files", files: others });
    }
    const whole = new Map();
    for (const file of ggufs) {
      if (ggufs.length > 1 && file.name.startsWith("mmproj")) continue; // the eyes of the model beside it
      const name = PART.test(file.name) ? file.name.replace(PART, "") : file.name;
      whole.set(name, [...whole.get(name) ?? [], file]);
    }
    for (const [name, parts] of whole) models.push({ name, files: parts });
  }
  return models;
}
