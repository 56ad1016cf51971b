"""
The right labels from a forest you have already
===============================================

A random forest gives probabilities; which labels to answer depends on the F1 that you report. ``ExpectedF1Classifier``
calibrates the probabilities out of fold and finds the cut that they ask for. No threshold is tuned by hand.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import f1_score

from rsoftmax.sklearn import ExpectedF1Classifier

X, Y = make_multilabel_classification(1200, n_features=40, n_classes=12, n_labels=3, random_state=0)
train, test = slice(0, 800), slice(800, None)
forest = RandomForestClassifier(100, random_state=0, n_jobs=2)

# %%
# The forest alone answers a label when its probability is above one half.
alone = forest.fit(X[train], Y[train]).predict(X[test])

# %%
# Behind it, for each average of F1:
scores = {}
for average in ("micro", "macro", "samples"):
    model = ExpectedF1Classifier(forest, average=average, random_state=0).fit(X[train], Y[train])
    scores[average] = [
        f1_score(Y[test], answer, average=average, zero_division=1) for answer in (alone, model.predict(X[test]))
    ]
    print(f"{average:8} forest alone {scores[average][0]:.3f}   behind it {scores[average][1]:.3f}")

# %%
plt.figure(figsize=(5, 3), layout="constrained")
for shift, (name, values) in enumerate(
    zip(("forest at .5", "ExpectedF1Classifier"), zip(*scores.values(), strict=True), strict=True)
):
    plt.bar([i + 0.38 * shift for i in range(len(scores))], values, 0.36, label=name)
plt.xticks([i + 0.19 for i in range(len(scores))], list(scores))
plt.ylabel("F1 on test rows")
plt.legend(loc="lower right")
plt.show()
