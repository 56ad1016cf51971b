"""The private names of scikit-learn that its estimators share and that have no public counterpart."""

from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils.validation import _check_method_params as check_method_params
from sklearn.utils.validation import _check_sample_weight as check_sample_weight
from sklearn.utils.validation import _num_samples as num_samples

__all__ = ["check_method_params", "check_sample_weight", "num_samples", "safe_indexing"]
