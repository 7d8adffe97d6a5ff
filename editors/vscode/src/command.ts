// How the server is started, and for which files. Nothing here needs VS Code, so that the tests use the same code.

import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";

/** The kinds of files that jobs consist of; the server ignores those that belong to no job. */
export const SELECTOR: { scheme: "file"; language?: string; pattern?: string }[] = [
  ...["shellscript", "python", "yaml", "json", "jsonc", "toml", "dockerfile", "makefile"].map((language) => ({
    scheme: "file" as const,
    language,
  })),
  ...["**/*.{sbatch,slurm,slrm,pbs,lsf,bsub,job,sub,hosts,hostfile}", "**/{hostfile,machinefile}*"].map((pattern) => ({
    scheme: "file" as const,
    pattern,
  })),
];

export interface Command {
  command: string;
  args: string[];
  cwd: string;
}

/**
 * The command that starts the server.
 *
 * The program is an absolute path, found in the absolute folders of PATH only: a folder of the workspace must not decide
 * which program runs. It starts in the home directory for the same reason.
 *
 * @throws Error if the program does not exist; the message says what to do.
 */
export function serverCommand(
  program: string,
  options: readonly string[],
  environment: NodeJS.ProcessEnv = process.env,
): Command {
  const found = path.isAbsolute(program) ? program : inPath(program, environment["PATH"] ?? "");
  if (found === undefined || !isExecutable(found)) {
    throw new Error(
      `The program ${program} was not found. Run: pip install "preflight-train[lsp]", ` +
        "or set preflight.path to the absolute path of preflight.",
    );
  }
  return { command: found, args: ["lsp", ...options], cwd: os.homedir() };
}

function inPath(name: string, folders: string): string | undefined {
  if (name !== path.basename(name)) {
    return undefined;
  }
  return folders
    .split(path.delimiter)
    .filter((folder) => path.isAbsolute(folder))
    .map((folder) => path.join(folder, name))
    .find(isExecutable);
}

function isExecutable(file: string): boolean {
  try {
    fs.accessSync(file, fs.constants.X_OK);
    return fs.statSync(file).isFile();
  } catch {
    return false;
  }
}
