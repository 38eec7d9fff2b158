"""Fitting an input-output HMM."""


class IOHMMFitting:
    """Mixed into :class:`~pplseq.models.iohmm.IOHMM`."""
