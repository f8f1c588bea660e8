"""Models behind one contract: tokens in, logits for chosen columns out."""

from lastword.models.adapter import Adapter
from lastword.models.dream import Dream
from lastword.models.llada import LLaDA
from lastword.models.load import load
from lastword.models.predictor import MaskPredictor
from lastword.models.tokenizer import Tokenizer
from lastword.models.toy import Toy

__all__ = ["Adapter", "Dream", "LLaDA", "MaskPredictor", "Tokenizer", "Toy", "load"]
