"""TF-IDF features and logistic regression, to hold a text classifier against."""

from collections.abc import Sequence

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline


def predict(train: Sequence[tuple[str, str]], texts: Sequence[str]) -> list[str]:
    """Train scikit-learn's classifier with its defaults on words, and return the labels of texts.

    Args:
        train: texts and their labels.
        texts: what to classify.
    """
    model = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000))
    model.fit([text for text, _ in train], [label for _, label in train])
    return [str(label) for label in model.predict(list(texts))]
