"""Carries out actions as a careful user would: what the library promises to need no care gets none.

The care of a user: a stream has a workspace of its own for layers, and so has a graph; work on the same tensors is
ordered by events; memory goes back to the allocator's stream behind the last work that uses it; a graph keeps the
tensors and plans that it uses, and is waited for before it goes.
"""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import gg_runtime
from fuzz import layouts
from fuzz.passes import Passes


class Wrong(AssertionError):
    """The library did something that it must not do."""


@dataclass
class Planned:
    plan: object
    problem: object
    stream: int
    key: tuple
    made: object = None  # event behind the allocation of its outputs, where it made them
    graph: "Graph | None" = None  # in whose capture it was made


@dataclass
class Graph:
    captured: object
    device: int
    results: list = field(default_factory=list)  # (problem, outputs, key) of the last call that left its outputs there
    trained: list = field(default_factory=list)  # (problem, what was recorded, gradients, seed)
    holds: list = field(default_factory=list)  # problems and plans that replays use
    used: object = None
    replayed: bool = False

    def leaves(self, problem, outputs, key) -> None:
        """A later call of the graph that writes the same outputs comes in the place of the earlier one."""
        self.results = [result for result in self.results if result[1] is not outputs]
        self.results.append((problem, outputs, key))

    def problems(self) -> list:
        return list({id(held): held for held in self.holds if not isinstance(held, Planned)}.values())

    def plans(self) -> list[Planned]:
        return [held for held in self.holds if isinstance(held, Planned)]


class Machine(Passes):
    """One walk's problems, plans, graphs and passes on a backend: cuda_backend.py, cpu_backend.py, order_backend.py."""

    one_capture = threading.Lock()  # torch's generators take no replay while any thread captures

    def __init__(self, backend, lane: int = 0):
        self.backend, self.lane = backend, lane
        self.problems, self.plans, self.graphs, self.passes = {}, {}, {}, {}
        self.counts = {}

    def step(self, number: int, action: dict) -> None:
        self.backend.begin_step(number, action)
        getattr(self, "do_" + action["do"])(action)

    def count(self, what: str, times: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + times

    # Order and ownership.

    @contextmanager
    def using(self, device: int, stream: int, *problems):
        """A stream that is behind all earlier work on the problems, and before all later."""
        with self.backend.on(device, stream):
            for problem in problems:
                self.backend.await_event(problem.used)
            yield
            event = self.backend.mark()
            for problem in problems:
                problem.used = event

    def hold(self, problem):
        problem.holders += 1
        return problem

    def release(self, problem) -> None:
        problem.holders -= 1
        if problem.holders:
            return
        with self.backend.on(problem.device, problem.stream):
            self.backend.await_event(problem.used)
            self.backend.give_back(problem)

    def forget(self, planned: Planned) -> None:
        """Drops the plan itself; the library keeps what its work still needs."""
        if planned.made is not None:  # its outputs go with it
            with self.backend.on(planned.problem.device, planned.stream):
                self.backend.await_event(planned.problem.used)
                planned.plan = None
        planned.plan = None
        self.release(planned.problem)

    # Problems.

    def do_make(self, spec: dict) -> None:
        with self.backend.on(spec["device"], spec["stream"]):
            problem = self.backend.make(spec)
            self.backend.fill(problem, spec["data"])
            problem.used = self.backend.mark()
        problem.holders = 1
        self.problems[spec["p"]] = problem
        self.count("problems")

    def do_free(self, action: dict) -> None:
        problem = self.problems.pop(action["p"], None)
        if problem:
            self.release(problem)

    def do_fill(self, action: dict) -> None:
        problem = self.problems.get(action["p"])
        if problem:
            with self.using(problem.device, action["stream"], problem):
                self.fill(problem, action["data"])

    def fill(self, problem, data: dict) -> None:
        problem.version += 1
        self.backend.fill(problem, data)

    # Eager calls.

    def launch(self, problem, action: dict):
        """Outputs and the key of their bits: the variant, and whether the library placed the outputs."""
        name = self.backend.variant(problem, action)
        self.backend.expect(problem)
        outputs = self.backend.call(problem, name, action["with_out"], action.get("pick", 0))
        of_lists = "Plan, at once" if name else "group_gemm"
        of_kind = {"list": of_lists, "layer": "fused_experts", "ragged": "grouped_mm"}
        self.count(of_kind.get(problem.kind, f"grouped_mm, {problem.kind}"))
        return outputs, (name or "of the library", action["with_out"])

    def do_call(self, action: dict) -> None:
        problem = self.problems.get(action["p"])
        if not problem:
            return
        with self.using(problem.device, action["stream"], problem):
            if action["with_out"]:
                self.backend.poison(problem)
            times = action.get("times", 1)
            for _ in range(times):  # more than once where each adds to the outputs
                outputs, key = self.launch(problem, action)
            self.backend.check(problem, outputs, key, times)

    def plan(self, problem, action: dict) -> Planned:
        name = self.backend.variant(problem, action)
        plan = self.backend.plan(problem, name, action["with_out"], action.get("pick", 0))
        self.count("ExpertsPlan" if problem.kind == "layer" else "Plan")
        # What the library chooses for a plan need not be what it chooses for one call.
        key = name or "of the library, for a plan", action["with_out"]
        return Planned(plan, self.hold(problem), action.get("stream"), key)

    def do_plan(self, action: dict) -> None:
        problem = self.problems.get(action["p"])
        if not problem:
            return
        with self.backend.on(problem.device, action["stream"]):  # waits for nothing: a plan reads no matrix
            planned = self.plan(problem, action)
            if not action["with_out"]:
                planned.made = self.backend.mark()
        self.plans[action["q"]] = planned

    def must_be_refused(self, planned: Planned, graph: Graph | None = None) -> bool:
        """A list that only a replay will write, before the first one."""
        elsewhere = planned.graph is not None and planned.graph is not graph
        return elsewhere and not planned.graph.replayed and not planned.plan.by_value

    def run_plan(self, planned: Planned, graph: Graph | None = None) -> bool:
        """Whether it ran; it must not where its list is not written yet."""
        if self.must_be_refused(planned, graph):
            self.count("refused")
            try:
                planned.plan.run()
            except gg_runtime.CudaError:
                raise
            except RuntimeError:
                return False
            raise Wrong("a Plan made inside a capture ran before any replay: its list is not written")
        self.backend.expect(planned.problem)
        planned.plan.run()
        self.count("run")
        return True

    def do_run(self, action: dict) -> None:
        planned = self.plans.get(action["q"])
        if not planned:
            return
        with self.using(planned.problem.device, action["stream"], planned.problem):
            self.backend.await_event(planned.made)
            self.backend.poison(planned.problem, planned.plan.out)
            if self.run_plan(planned):
                self.backend.check(planned.problem, planned.plan.out, planned.key)

    def do_drop(self, action: dict) -> None:
        planned = self.plans.pop(action["q"], None)
        if planned:
            self.forget(planned)

    # Graphs.

    def do_capture(self, action: dict) -> None:
        with self.one_capture, self.backend.on(action["device"], action["stream"]):
            graph = Graph(self.backend.begin_capture(action["device"], action["stream"]), action["device"])
            try:
                for inner in action["calls"]:
                    self.capture_one(graph, inner)
            finally:
                self.backend.end_capture(graph.captured)
        self.graphs[action["g"]] = graph
        self.count("captures")

    def capture_one(self, graph: Graph, action: dict) -> None:
        if action["do"] == "drop":
            return self.do_drop(action)
        if action["do"] == "run":
            return self.capture_run(graph, self.plans.get(action["q"]))
        problem = self.problems.get(action["p"])
        if not problem or problem.device != graph.device:
            return None
        if action["do"] == "train":
            return self.capture_train(graph, problem, action)
        if self.adds_twice(graph, problem):
            return None
        if action["do"] == "plan":
            planned = self.plans[action["q"]] = self.plan(problem, action)
            planned.graph = graph
            graph.holds.append(self.hold(problem))  # replays write the list anew
            return None
        outputs, key = self.launch(problem, action)
        graph.holds.append(self.hold(problem))
        if action["with_out"] or action.get("pick", 0) % 2 == 0:  # else dropped here: memory for the next call
            graph.leaves(problem, outputs, key)
        return None

    @staticmethod
    def adds_twice(graph: Graph, problem) -> bool:
        """Outputs that are added to are judged by one call in a graph."""
        return layouts.adds(problem.spec) and problem in graph.problems()

    def capture_run(self, graph: Graph, planned: Planned | None) -> None:
        if not planned or planned.problem.device != graph.device or self.adds_twice(graph, planned.problem):
            return
        if not self.run_plan(planned, graph):
            return
        graph.holds.append(self.hold(planned.problem))
        graph.leaves(planned.problem, planned.plan.out, planned.key)
        # The library keeps the list of a plan that is dropped; outputs that the plan made are the user's to keep.
        if planned.graph is not graph and planned.made is not None:
            held = Planned(planned.plan, self.hold(planned.problem), planned.stream, planned.key, planned.made)
            graph.holds.append(held)

    def do_replay(self, action: dict) -> None:
        graph = self.graphs.get(action["g"])
        if not graph:
            return
        problems = graph.problems()
        with self.using(graph.device, action["stream"], *problems):
            self.backend.await_event(graph.used)
            for planned in graph.plans():
                self.backend.await_event(planned.made)
            for p, data in action["fills"]:
                if self.problems.get(p) in problems:
                    self.fill(self.problems[p], data)
            for _ in range(action["times"]):
                self.replay(graph)
            graph.used = self.backend.mark()

    def replay(self, graph: Graph) -> None:
        for problem, outputs, _ in graph.results:
            self.backend.poison(problem, outputs)
        for problem, _, gradients, _ in graph.trained:
            self.backend.poison_gradients(problem, gradients)
            self.backend.before_backward(problem)
        with self.one_capture:
            self.backend.replay(graph.captured)
        graph.replayed = True
        self.count("replays")
        for problem, outputs, key in graph.results:
            self.backend.check(problem, outputs, key)
        for trained in graph.trained:
            self.backend.check_gradients(*trained)

    def do_destroy(self, action: dict) -> None:
        graph = self.graphs.pop(action["g"], None)
        if not graph:
            return
        self.backend.wait_for_host(graph.used)
        graph.results.clear()
        graph.trained.clear()
        for held in graph.holds:
            if isinstance(held, Planned):
                self.forget(held)
            else:
                self.release(held)
        with self.one_capture:
            self.backend.destroy(graph.captured)

    # The rest.

    def do_trash(self, action: dict) -> None:
        with self.backend.on(action["device"], action["stream"]):
            self.backend.trash(action["bytes"], action["byte"])

    def do_busy(self, action: dict) -> None:
        with self.backend.on(action["device"], action["stream"]):
            self.backend.busy(action["cycles"])

    def do_plant(self, action: dict) -> None:
        """A wrong result in the place of the next right one: what finds nothing else must find this."""
        self.backend.plant(action["what"])

    def do_settle(self, action: dict) -> None:
        self.backend.settle()

    def do_together(self, action: dict) -> None:
        """Two walks on tensors and streams of their own, in two threads at once."""
        machines = [Machine(self.backend.lane(number + 1), number + 1) for number in range(len(action["walks"]))]

        def work(machine: Machine, actions: list[dict]) -> None:
            for number, inner in enumerate(actions):
                machine.step(number, inner)
            machine.close()

        self.backend.at_once([lambda pair=pair: work(*pair) for pair in zip(machines, action["walks"])])
        for machine in machines:
            for what, times in machine.counts.items():
                self.count(what, times)
        self.count("in two threads")

    def close(self) -> None:
        """Everything goes, in any order that a user might choose."""
        for q in list(self.plans):
            self.do_drop({"q": q})
        for t in list(self.passes):
            self.do_forget({"t": t})
        for p in list(self.problems):
            self.do_free({"p": p})
        for g in list(self.graphs):
            self.do_destroy({"g": g})
        self.backend.settle()
