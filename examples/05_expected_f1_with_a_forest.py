"""
Better labels from a random forest
==================================

A random forest gives probabilities. Which labels to predict from them depends on the F1 that you report.
``ExpectedF1Classifier`` calibrates the probabilities on held-out folds and derives the threshold. Nothing is tuned.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import f1_score

from rsoftmax.labels import ExpectedF1Classifier

X, Y = make_multilabel_classification(1200, n_features=40, n_classes=12, n_labels=3, random_state=0)
train, test = slice(0, 800), slice(800, None)
forest = RandomForestClassifier(100, random_state=0, n_jobs=2)

# %%
# The forest alone predicts a label if its probability is above one half.
alone = forest.fit(X[train], Y[train]).predict(X[test])

# %%
# With ``ExpectedF1Classifier``, for each average of F1:
scores = {}
for average in ("micro", "macro", "samples"):
    model = ExpectedF1Classifier(forest, average=average, random_state=0).fit(X[train], Y[train])
    scores[average] = [
        f1_score(Y[test], answer, average=average, zero_division=1) for answer in (alone, model.predict(X[test]))
    ]
    print(f"{average:8} forest alone {scores[average][0]:.3f}   with ExpectedF1Classifier {scores[average][1]:.3f}")

# %%
plt.figure(figsize=(5, 3), layout="constrained")
for shift, (name, values) in enumerate(
    zip(("forest at .5", "ExpectedF1Classifier"), zip(*scores.values(), strict=True), strict=True)
):
    plt.bar([i + 0.38 * shift for i in range(len(scores))], values, 0.36, label=name)
plt.xticks([i + 0.19 for i in range(len(scores))], list(scores))
plt.ylabel("F1 on the test set")
plt.legend(loc="lower right")
plt.show()
