"""Forward and backward passes of a machine, on streams that differ.

The care of a user, besides what machine.py tells: what a pass keeps, and the gradients that it makes, go back to the
stream of its forward behind the last work that uses them. A backward of tensors that were filled anew must be refused.
"""

from dataclasses import dataclass


@dataclass
class Pass:
    recorded: object
    problem: object
    stream: int  # of the forward
    version: int  # of the problem's data then


class Passes:
    """What machine.Machine does with them."""

    def record(self, problem, action: dict) -> tuple:
        """What torch recorded, and the outputs, of which none are left where the action drops them."""
        recorded, outputs = self.backend.forward(problem, action)
        self.count("forward")
        return recorded, outputs

    def do_forward(self, action: dict) -> None:
        problem = self.problems.get(action["p"])
        if not problem:
            return
        with self.using(problem.device, action["stream"], problem):
            recorded, outputs = self.record(problem, action)
            # It goes back to this stream, in do_forget. That of a captured pass is made by the first check, and its
            # graph is waited for before it goes.
            self.backend.make_room(recorded)
            self.backend.check(problem, outputs, ("recorded", False))
            if action["drops"]:
                del outputs
                self.backend.drop_outputs(recorded)
        self.passes[action["t"]] = Pass(recorded, self.hold(problem), action["stream"], problem.version)

    def do_backward(self, action: dict) -> None:
        known = self.passes.get(action["t"])
        if not known:
            return
        problem, gradients = known.problem, None
        with self.using(problem.device, action["stream"], problem):
            if known.version != problem.version:
                self.backend.must_refuse(problem, known.recorded)
                self.count("backward, refused")
            else:
                self.backend.before_backward(problem)
                gradients = self.backend.backward(problem, known.recorded, action)
                self.count("backward")
                self.backend.check_gradients(problem, known.recorded, gradients, action["seed"])
        with self.backend.on(problem.device, known.stream):
            self.backend.await_event(problem.used)
            del gradients
        if known.version != problem.version or not action["again"]:
            self.do_forget(action)

    def do_forget(self, action: dict) -> None:
        known = self.passes.pop(action["t"], None)
        if not known:
            return
        with self.backend.on(known.problem.device, known.stream):
            self.backend.await_event(known.problem.used)
            known.recorded = None
        self.release(known.problem)

    def capture_train(self, graph, problem, action: dict) -> None:
        """Both passes in a graph. Main gradients are judged by one backward in a graph."""
        into_main = action["main"]
        if into_main and any(other is problem for other, *_ in graph.trained):
            return
        recorded, outputs = self.record(problem, action)
        if action["drops"]:
            del outputs
            self.backend.drop_outputs(recorded)
        else:
            graph.leaves(problem, outputs, ("recorded", False))
        gradients = self.backend.backward(problem, recorded, action)
        self.count("forward and backward, captured")
        graph.trained.append((problem, recorded, gradients, action["seed"]))
        graph.holds.append(self.hold(problem))
