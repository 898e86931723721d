// The Python beside the controller that speaks to Ray: source text in a single file, so that any python3 that has Ray runs it.

/**
 * Reads JSON lines: first {address, hosts, bundle, wait, again}, then {start: index, argv, cwd, env, line} and {kill: index}. Writes
 * {failed: text}, and for each start {ended: index, how}. At first all hosts get their places together or not at all (a placement group); a
 * process that is begun `again`, after a failure, takes for each a node that is free, so that fewer are of use. It ends with its stdin, and with it all that it has started.
 */
export const RAY_PROGRAM = `import collections, json, os, subprocess, sys, threading, time

lock, placing = threading.Lock(), threading.Lock()
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what Ray prints is for people

def say(**event):
    with lock:
        out.write(json.dumps(event) + "\\n")
        out.flush()

class Host:
    def __init__(self):
        self.child = None

    def run(self, argv, cwd, env, line):
        try:  # Ray's processes have niceness 15, which is not for training; only root may lower it
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        except OSError:
            pass
        self.child = subprocess.Popen(argv, cwd=cwd, env={**os.environ, **env}, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            self.child.stdin.write(line)
            self.child.stdin.close()
        except BrokenPipeError:
            pass
        tail = collections.deque(self.child.stdout, maxlen=10)
        code = self.child.wait()
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return how + "".join("\\n  " + text.rstrip() for text in tail)

    def kill(self):
        if self.child is not None:
            self.child.kill()

def main():
    first = json.loads(sys.stdin.readline())
    try:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy as Bundle
        ray.init(address=first["address"], logging_level="error", log_to_driver=False)
        group = None if first["again"] else placement_group([first["bundle"]] * first["hosts"], strategy="STRICT_SPREAD")
        if group is not None and not group.wait(first["wait"]):
            free = {node["NodeManagerHostname"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
            raise TimeoutError(f"no place for {first['hosts']} hosts with {first['bundle']} each within {first['wait']} s; "
                               f"the nodes are {json.dumps(free)}, of which are free {json.dumps(ray.available_resources())}")
    except Exception as error:
        say(failed=f"{type(error).__name__}: {error}")
        return
    remote = ray.remote(max_restarts=0, max_concurrency=2)(Host)
    actors, taken = {}, {}

    def place(index):
        if group is not None:
            return Bundle(group, index)
        until = time.monotonic() + first["wait"]
        while time.monotonic() < until:
            with placing:
                for node in ray.nodes():
                    has = all(node["Resources"].get(kind, 0) >= much for kind, much in first["bundle"].items())
                    if node["Alive"] and has and node["NodeID"] not in taken.values():
                        taken[index] = node["NodeID"]
                        return NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            time.sleep(0.5)
        raise TimeoutError(f"no node was free for {first['bundle']} within {first['wait']} s")

    def start(index, argv, cwd, env, line):
        bundle, actor = first["bundle"], None
        try:
            actor = remote.options(num_cpus=bundle["CPU"], num_gpus=bundle.get("GPU", 0),
                                   scheduling_strategy=place(index)).remote()
            actors[index] = actor
            how = ray.get(actor.run.remote(argv, cwd, env, line))
        except Exception as error:
            how = f"lost by Ray: {type(error).__name__}: {str(error).splitlines()[0]}"
        # A bundle that was lost is placed again elsewhere; what was in it must give way first.
        try:
            ray.kill(actor)
        except Exception:
            pass
        taken.pop(index, None)
        say(ended=index, how=how)

    for text in sys.stdin:
        order = json.loads(text)
        if "start" in order:
            arguments = (order["start"], order["argv"], order["cwd"], order["env"], order["line"])
            threading.Thread(target=start, args=arguments, daemon=True).start()
        elif order["kill"] in actors:
            actors[order["kill"]].kill.remote()

main()
out.flush()
os._exit(0)
`;
