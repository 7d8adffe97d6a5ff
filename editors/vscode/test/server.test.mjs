// The language client's own protocol library talks to the server that the extension would start.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import protocol from "vscode-languageserver-protocol/node";

import { SELECTOR, serverCommand } from "../dist/command.mjs";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const ROOT = path.resolve(HERE, "../../..");
const PROGRAM = process.env.PREFLIGHT ?? path.join(ROOT, ".venv/bin/preflight");
const DEADLINE_MS = 60_000;

let folder;
let child;
let connection;
const shown = new Map();
const waiting = new Set();

function uri(name) {
  return pathToFileURL(path.join(folder, name)).href;
}

function rules(name) {
  return (shown.get(uri(name)) ?? []).map((one) => one.code).sort();
}

function until(reached) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no answer in time; shown: ${JSON.stringify([...shown])}`)), DEADLINE_MS);
    const look = () => {
      if (reached()) {
        clearTimeout(timer);
        waiting.delete(look);
        resolve();
      }
    };
    waiting.add(look);
    look();
  });
}

before(async () => {
  folder = fs.mkdtempSync(path.join(fs.realpathSync(os.tmpdir()), "preflight-"));
  fs.cpSync(path.join(ROOT, "examples/torchrun-two-nodes/broken"), folder, { recursive: true });
  const { command, args, cwd } = serverCommand(PROGRAM, []);
  child = spawn(command, args, { cwd, stdio: ["pipe", "pipe", "inherit"] });
  connection = protocol.createProtocolConnection(
    new protocol.StreamMessageReader(child.stdout),
    new protocol.StreamMessageWriter(child.stdin),
  );
  connection.onNotification(protocol.PublishDiagnosticsNotification.type, (params) => {
    shown.set(params.uri, params.diagnostics);
    for (const look of [...waiting]) {
      look();
    }
  });
  connection.onRequest(protocol.RegistrationRequest.type, () => {});
  connection.listen();
  const answer = await connection.sendRequest(protocol.InitializeRequest.type, {
    processId: process.pid,
    rootUri: pathToFileURL(folder).href,
    workspaceFolders: [{ uri: pathToFileURL(folder).href, name: "job" }],
    capabilities: {
      workspace: { didChangeWatchedFiles: { dynamicRegistration: true }, workspaceEdit: { documentChanges: true } },
      textDocument: { publishDiagnostics: { relatedInformation: true, codeDescriptionSupport: true, dataSupport: true } },
    },
  });
  assert.equal(answer.serverInfo?.name, "preflight");
  assert.ok(answer.capabilities.hoverProvider && answer.capabilities.definitionProvider);
  await connection.sendNotification(protocol.InitializedNotification.type, {});
});

after(async () => {
  await connection.sendRequest(protocol.ShutdownRequest.type);
  const ended = new Promise((resolve) => child.once("exit", resolve));
  await connection.sendNotification(protocol.ExitNotification.type);
  assert.equal(await ended, 0);
  connection.dispose();
  fs.rmSync(folder, { recursive: true });
});

test("findings, a fix, and the findings after it", async () => {
  const text = fs.readFileSync(path.join(folder, "run.sh"), "utf8");
  await connection.sendNotification(protocol.DidOpenTextDocumentNotification.type, {
    textDocument: { uri: uri("run.sh"), languageId: "shellscript", version: 1, text },
  });
  await until(() => rules("run.sh").includes("ENV001") && rules("train.py").includes("PGR001"));
  const [finding] = shown.get(uri("run.sh")).filter((one) => one.code === "ENV001");
  assert.match(finding.codeDescription.href, /^file:.*#env001-/);
  const actions = await connection.sendRequest(protocol.CodeActionRequest.type, {
    textDocument: { uri: uri("run.sh") },
    range: finding.range,
    context: { diagnostics: [finding] },
  });
  const rename = actions.find((one) => one.title.startsWith("rename"));
  const [edit] = rename.edit.documentChanges[0].edits;
  const lines = text.split("\n");
  const { start, end } = edit.range;
  lines[start.line] = lines[start.line].slice(0, start.character) + edit.newText + lines[start.line].slice(end.character);
  await connection.sendNotification(protocol.DidChangeTextDocumentNotification.type, {
    textDocument: { uri: uri("run.sh"), version: 2 },
    contentChanges: [{ text: lines.join("\n") }],
  });
  await until(() => !rules("run.sh").includes("ENV001"));
  assert.deepEqual(rules("run.sh"), ["RDV001"]);
});

test("a hover says what an option decides", async () => {
  const text = fs.readFileSync(path.join(folder, "run.sh"), "utf8").split("\n");
  const line = text.findIndex((one) => one.includes("--nnodes=2"));
  const hover = await connection.sendRequest(protocol.HoverRequest.type, {
    textDocument: { uri: uri("run.sh") },
    position: { line, character: text[line].indexOf("--nnodes") + 3 },
  });
  assert.equal(hover.contents.kind, "markdown");
  assert.match(hover.contents.value, /2 ranks on 2 nodes/);
});

test("only absolute folders of PATH are searched", () => {
  const place = fs.mkdtempSync(path.join(os.tmpdir(), "preflight-path-"));
  fs.writeFileSync(path.join(place, "preflight"), "#!/bin/sh\n", { mode: 0o755 });
  const before = process.cwd();
  process.chdir(place);
  try {
    assert.throws(() => serverCommand("preflight", [], { PATH: ".::bin" }), /pip install/);
    assert.throws(() => serverCommand("./preflight", [], { PATH: place }), /not found/);
    assert.equal(serverCommand("preflight", ["--no-config"], { PATH: `.:${place}` }).command, path.join(place, "preflight"));
  } finally {
    process.chdir(before);
    fs.rmSync(place, { recursive: true });
  }
});

test("a workspace cannot choose the program, and every language starts the extension", () => {
  const manifest = JSON.parse(fs.readFileSync(path.join(HERE, "../package.json"), "utf8"));
  for (const [name, setting] of Object.entries(manifest.contributes.configuration.properties)) {
    assert.equal(setting.scope, "machine", name);
    assert.ok(manifest.capabilities.untrustedWorkspaces.restrictedConfigurations.includes(name));
  }
  const languages = SELECTOR.flatMap((one) => (one.language ? [`onLanguage:${one.language}`] : []));
  assert.deepEqual(languages, manifest.activationEvents);
});
