"""The predictors: every method with each of its decision rules."""

from typing import NamedTuple

from rsoftmax_lab.comparison.methods import KNOWN, METHODS, P0, USERS


class Predictor(NamedTuple):
    """A method and its decision rule."""

    method: str
    rule: str = "labels"

    @property
    def title(self) -> str:
        """Its name in tables and figures."""
        title = KNOWN[self.method].title
        match self.rule:
            case "labels":
                return title
            case "tuned" if KNOWN[self.method].ours:
                return f"network of {title}, threshold tuned"
            case "tuned":
                return f"{title}, threshold tuned"
            case "true_count":
                return f"{title}, true count"
        return f"{title}, {self.rule.replace('=', ' = ')}"

    @property
    def name(self) -> str:
        """Its title, marked "(ours)" if it is ours."""
        return f"{self.title} (ours)" if KNOWN[self.method].ours and self.rule != "tuned" else self.title


ALL_PREDICTORS = tuple(Predictor(name, rule) for name, method in METHODS.items() for rule in method.rules)
ORACLES = tuple(one for one in ALL_PREDICTORS if one.rule == "true_count")
PREDICTORS = tuple(one for one in ALL_PREDICTORS if one not in ORACLES)
OURS = tuple(one for one in PREDICTORS if METHODS[one.method].ours and one.rule == "labels")
OTHERS = tuple(one for one in PREDICTORS if not METHODS[one.method].ours)
BEST_OF_OURS = Predictor("r_softmax_expected_f1")
ITS_NETWORK_TUNED = Predictor("r_softmax_expected_f1", "tuned")  # the same logits without the rule
USERS_MICRO = Predictor("users_micro")
BY_USERS = tuple(Predictor(name, rule) for name, method in USERS.items() for rule in method.rules)
LITERAL = Predictor("r_softmax_rate")  # the paper's head, read literally
PAPERS = Predictor("r_softmax_count")  # another reading, which has rows on all data
SPARSE = tuple(map(Predictor, ("sparsemax_huber", "sparsemax_hinge", "sparsehourglass")))
IN_THE_PAPER = (*SPARSE, *(Predictor("softmax", f"p0={p0}") for p0 in P0 if p0 >= 0.05))
