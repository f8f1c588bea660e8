"""Models behind one contract: tokens in, logits for chosen columns out."""

from lastword.models.adapter import Adapter as Adapter
from lastword.models.dream import Dream as Dream
from lastword.models.llada import LLaDA as LLaDA
from lastword.models.load import load as load
from lastword.models.predictor import MaskPredictor as MaskPredictor
from lastword.models.predictor import TextTokenizer as TextTokenizer
from lastword.models.tokenizer import Tokenizer as Tokenizer
from lastword.models.toy import Toy as Toy
