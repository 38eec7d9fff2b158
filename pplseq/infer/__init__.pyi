
from .discrete.chain import Chain as Chain
from .discrete.constrained.states import constrain_states as constrain_states
from .discrete.results import StateMarginals as StateMarginals
from .fit.em import FitHistory as FitHistory
from .forecasts import Forecast as Forecast
from .gaussian.chain import GaussianChain as GaussianChain
from .programs.blocked_enum import BlockedEnum as BlockedEnum
from .programs.elbo import TraceBlockedEnum_ELBO as TraceBlockedEnum_ELBO
from .programs.kalman_collapse import KalmanCollapse as KalmanCollapse
from .programs.kalman_collapse import TraceKalman_ELBO as TraceKalman_ELBO
from .programs.markov import markov as markov
from .programs.states import check_vectorizable as check_vectorizable
from .programs.states import infer_states as infer_states
