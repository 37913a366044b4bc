"""Starts the contestants of bench/compare and reads what they print."""
import ctypes.util
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time

from .rows import RETAINING

PATIENCE = 600  # seconds that a contestant may take


class Failure(Exception):
    """A contestant that cannot run here, in one line."""


class Machine:
    """Where the programs are, and how they are started."""

    def __init__(self, build, rivals, blocks, block_seconds):
        self.here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self.bin, self.rivals = os.path.join(build, "bin"), rivals
        self.timing = ["--blocks", str(blocks), "--block-seconds", str(block_seconds)]
        self.jemalloc = ctypes.util.find_library("jemalloc")

    def program(self, name):
        path = os.path.join(self.bin, name)
        if not os.access(path, os.X_OK):
            raise Failure(f"there is no {path}")
        return path

    def python(self, environment):
        path = os.path.join(self.rivals, environment, "bin", "python")
        if not os.access(path, os.X_OK):
            raise Failure("not set up: bench/compare --setup")
        return path

    def command(self, contestant, variant):
        """Everything but the ranks' own flags."""
        arguments = [*contestant.arguments, *variant]
        if contestant.program == "ucx":
            return None
        if contestant.program == "lockstep_workers":
            program = self.program("lockstep")
            return [program, "run", "-n", str(contestant.ranks), "--", program, *arguments, *self.timing]
        if contestant.program == "parameter_server_tasks":
            return [self.program("lockstep"), "run", "--ps", "1", "-n", str(contestant.ranks), "--",
                    self.program("parameter_servers"), *arguments, *self.timing]
        if contestant.program in ("lockstep", "by_hand", "input_pipeline", "parameter_servers", "ps_lite"):
            return [self.program(contestant.program), *arguments, *self.timing]
        if contestant.program == "run_overhead":
            return [self.program("run_overhead"), "--model", "cnn", "--batch", "64", "--blocks", "30", "--steps", "10"]
        environment = contestant.program.split("_")[0]
        script = contestant.program if "_" in contestant.program else contestant.program + "_train"
        return [self.python(environment), os.path.join(self.here, "rivals", script + ".py"), *arguments, *self.timing]

    def run(self, contestant, variant, retaining, dump):
        """One measurement: {ms, samples_per_second, ...}, with `rate` to compare by."""
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(RETAINING if retaining else {}), **contestant.environment}
        if retaining:
            env["LD_PRELOAD"] = self.jemalloc
        command = self.command(contestant, variant)
        if contestant.network:
            return run_on_hosts(contestant, command, env)
        if contestant.program in ("lockstep", "lockstep_workers", "parameter_servers", "parameter_server_tasks"):
            return run_lockstep([command], env, dump if contestant.name == "Lockstep" else None)
        if contestant.program == "run_overhead":
            return run_overhead(command, env, contestant.arguments[0])
        if contestant.program == "ucx":
            return run_ucx(env, *contestant.arguments)
        if contestant.checked and dump:
            command += ["--dump", dump]
        if contestant.program == "by_hand":
            return run_mpi(command, env, contestant.ranks)
        if contestant.program == "ps_lite":
            return run_ps_lite(command, env, contestant.ranks)
        env["OMP_NUM_THREADS"] = "1"
        if "one" in contestant.arguments:
            env["OMP_NUM_THREADS"] = contestant.arguments[contestant.arguments.index("--world") + 1]
        commands = [command]
        if contestant.ranks > 1:
            flags = ["--port", str(free_port())]
            if "--world" not in command:
                flags += ["--world", str(contestant.ranks)]
            commands = [[*command, *flags, "--rank", str(rank)] for rank in range(contestant.ranks)]
        reports = reports_of(wait_for(commands, env))
        result = reports[0]
        result["rate"] = 1e3 / result["ms"]["median"]
        if "samples_per_second" in result:
            result["rate"] = sum(r["samples_per_second"] for r in reports) if contestant.sum_of_ranks else result["samples_per_second"]
        result["peak_memory_mib"] = result["peak_memory_mib"] * contestant.ranks
        return result


def wait_for(commands, env):
    """Starts all commands at once and gives the lines of all; none is left behind."""
    processes, outputs = [], []
    try:
        for command in commands:
            outputs.append((tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")))
            processes.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=outputs[-1][0], stderr=outputs[-1][1]))
        for process in processes:
            process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        raise Failure(f"not done after {PATIENCE} s") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    lines = []
    for process, (output, errors) in zip(processes, outputs):
        for file in (output, errors):
            file.seek(0)
        if process.returncode != 0:
            text = errors.read().strip().splitlines() or ["no message"]
            raise Failure(f"exit code {process.returncode}: {text[-1][:160]}")
        lines += output.read().splitlines()
    return lines


def reports_of(lines):
    reports = [json.loads(line) for line in lines if line.startswith("{")]
    if not reports:
        raise Failure("it printed no result")
    return reports


def run_on_hosts(contestant, command, env):
    """The first ranks are on the first host."""
    from .network import PORT, Network  # needs root and Linux; the other rows do not
    hosts = contestant.ranks // contestant.ranks_of_host
    with Network(hosts, contestant.network, contestant.ranks_of_host) as network:
        if contestant.program == "lockstep":
            return run_lockstep([network.inside(rank, command) for rank in range(contestant.ranks)], env, None)
        env = {**env, "OMP_NUM_THREADS": "1"}
        flags = ["--address", "10.77.0.1", "--port", str(PORT)]
        result = reports_of(wait_for([network.inside(rank, [*command, *flags, "--rank", str(rank)])
                                      for rank in range(contestant.ranks)], env))[0]
    result["rate"] = result["samples_per_second"]
    result["peak_memory_mib"] = result["peak_memory_mib"] * contestant.ranks
    return result


def run_lockstep(commands, env, dump):
    """The first command writes the report."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "report.json")
        wait_for([[*commands[0], "--json", file, *(["--dump", dump] if dump else [])], *commands[1:]], env)
        with open(file) as text:
            report = json.load(text)
    if report["bench"] == "all-reduce":
        hot = next(row for row in report["sizes"] if row["buffers"] == "hot")
        report["ms"] = {key: value / 1e3 for key, value in hot["us"].items()}
    elif report["bench"] == "wire":
        report["ms"] = {key: value / 1e3 for key, value in report["sizes"][0]["us"].items()}
    else:
        report["ms"] = report["ms_per_step"]
    report["rate"] = report.get("samples_per_second", 1e3 / report["ms"]["median"])
    share = report.get("share_of_triad_bandwidth", hot.get("share_of_copy_bandwidth") if report["bench"] == "all-reduce" else None)
    if share is not None:
        report["share"] = share
    return report


def run_overhead(command, env, which):
    for line in wait_for([command], env):
        found = re.match(re.escape(which) + r" +([0-9.]+) ms \(p10 ([0-9.]+), p90 ([0-9.]+)\)", line)
        if found:
            median, p10, p90 = (float(text) for text in found.groups())
            return {"ms": {"median": median, "p10": p10, "p90": p90}, "rate": 1e3 / median}
    raise Failure("it printed no result")


def run_mpi(command, env, ranks):
    mpirun = shutil.which("mpirun")
    if not mpirun:
        raise Failure("there is no mpirun: install openmpi-bin and libopenmpi-dev, and build again")
    env = {**env, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
    placing = ["--bind-to", "core"] if ranks <= len(os.sched_getaffinity(0)) else ["--oversubscribe", "--bind-to", "none"]
    lines = wait_for([[mpirun, "-n", str(ranks), *placing, *command]], env)
    result = json.loads(next(line for line in lines if line.startswith("{")))
    result["rate"] = result.get("samples_per_second", 1e3 / result["ms"]["median"])
    result["peak_memory_mib"] = result["peak_memory_mib"] * ranks
    return result


def run_ps_lite(command, env, workers):
    """A scheduler, which is not in the way, a server, and workers, whose rates add up."""
    env = {**env, "OMP_NUM_THREADS": "1", "DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": str(workers), "DMLC_INTERFACE": "lo",
           "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_port()), "DMLC_NODE_HOST": "127.0.0.1"}
    roles = ["scheduler", "server", *["worker"] * workers]
    reports = reports_of(wait_for([["env", f"DMLC_ROLE={role}", *command] for role in roles], env))
    result = reports[0]
    result["rate"] = sum(report["samples_per_second"] for report in reports)
    if workers > 1:
        result["ms"] = {key: value / workers for key, value in result["ms"].items()}
    return result


def run_ucx(env, size, transports="posix,sysv,cma,self"):
    """UCX's own benchmark: one tensor one way, which two ranks of an all-reduce or an exchange do at the same time."""
    size = int(size)
    program = shutil.which("ucx_perftest")
    if not program:
        raise Failure("there is no ucx_perftest: install ucx-utils")
    env = {**env, "UCX_TLS": transports, **({"UCX_NET_DEVICES": "lo"} if "tcp" in transports else {})}
    cores = sorted(os.sched_getaffinity(0))
    port = str(free_port())
    iterations = max(20, min(50000, (2 << 30) // size))
    server = subprocess.Popen([program, "-p", port, "-c", str(cores[0])], env=env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = [program, "127.0.0.1", "-p", port, "-c", str(cores[-1]), "-t", "tag_lat", "-s", str(size),
                  "-n", str(iterations), "-w", str(iterations // 10 + 1), "-f", "-v"]
        for _ in range(50):  # until the server listens
            result = subprocess.run(client, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
            found = re.search(r"^ *\d+,([0-9.]+),", result.stdout, re.MULTILINE)
            if result.returncode == 0 and found:
                ms = float(found.group(1)) / 1e3
                return {"ms": {"median": ms, "p10": ms, "p90": ms}, "rate": 1e3 / ms}
            time.sleep(0.1)
    except subprocess.TimeoutExpired:
        raise Failure(f"not done after {PATIENCE} s") from None
    finally:
        server.kill()
        server.wait()
    text = (result.stderr or result.stdout).strip().splitlines() or ["no message"]
    raise Failure(f"ucx_perftest: {text[-1][:160]}")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
