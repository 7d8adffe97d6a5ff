// Starts `preflight lsp` and connects VS Code to it.

import * as vscode from "vscode";
import { LanguageClient } from "vscode-languageclient/node";

import { SELECTOR, serverCommand } from "./command";

let client: LanguageClient | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  context.subscriptions.push(
    vscode.commands.registerCommand("preflight.restart", async () => {
      await deactivate();
      await start();
    }),
    vscode.workspace.onDidChangeConfiguration(async (change) => {
      if (change.affectsConfiguration("preflight")) {
        await deactivate();
        await start();
      }
    }),
  );
  await start();
}

export async function deactivate(): Promise<void> {
  const old = client;
  client = undefined;
  await old?.dispose();
}

async function start(): Promise<void> {
  const settings = vscode.workspace.getConfiguration("preflight");
  try {
    // Both settings have the scope `machine`: a workspace cannot set them.
    const command = serverCommand(settings.get("path", "preflight"), settings.get<string[]>("arguments", []));
    client = new LanguageClient(
      "preflight",
      "preflight",
      { command: command.command, args: command.args, options: { cwd: command.cwd } },
      { documentSelector: SELECTOR },
    );
    await client.start();
  } catch (error) {
    client = undefined;
    void vscode.window.showErrorMessage(`preflight: ${error instanceof Error ? error.message : String(error)}`);
  }
}
