from pplseq.infer.programs.block_hmm import BlockHMM as BlockHMM

from .dense import CategoricalEmission as CategoricalEmission
from .dense import DenseTransition as DenseTransition
from .dense import GaussianEmission as GaussianEmission
from .linear_gaussian import LinearGaussian as LinearGaussian
from .noise import DiagonalMinusLowRank as DiagonalMinusLowRank
from .product import ProductTransition as ProductTransition
from .second_order import SecondOrderTransition as SecondOrderTransition
from .state import MISSING as MISSING
from .state import Belief as Belief
from .state import Emission as Emission
from .state import Transition as Transition
from .variable_order import VariableOrderTransition as VariableOrderTransition
