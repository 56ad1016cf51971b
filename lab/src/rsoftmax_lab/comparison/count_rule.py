"""The rule "count": the k best labels, with k predicted from the features; only the comparison uses it."""

from collections.abc import Mapping

from torch import Tensor

from rsoftmax.labels import RULES, Decoder, Output, RankingRule, Scores, keep_count, losses, rate_of_count


class Count(RankingRule):
    """The k best labels, where a layer on the features predicts k.

    In training, eq. 5 takes the true number of labels, so that the scores do not depend on predicted counts. The counts
    are trained by cross-entropy. This reads the paper's section 4.1 differently from the rule "rate".
    """

    name = "count"

    def layers(self, num_labels: int) -> dict[str, int]:
        """Labels; counts 0..K."""
        return {"logits": num_labels, "count": num_labels + 1}

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """Logits of labels and of counts."""
        return Scores(outputs["logits"], aux_logits=outputs["count"])

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """Select the most probable number of labels by r-softmax."""
        k = scores.require("aux_logits").argmax(-1, keepdim=True)
        return Output(*scores, rate_of_count(k, scores.logits), keep_count(scores.logits, k))

    def loss(self, scores: Scores, y: Tensor) -> Tensor:
        """The loss of the labels plus that of their count."""
        return super().loss(scores, y) + losses.label_count_loss(scores.require("aux_logits"), y, reduction="none")

    def training_rate(self, scores: Scores, y: Tensor) -> Tensor:
        """The true rate of zeros."""
        return rate_of_count(y.sum(-1, keepdim=True), scores.logits)


RULES[Count.name] = Count  # SparseLabelClassifier(rule="count")
