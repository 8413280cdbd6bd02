"""A model's shape as its configuration tells it: read by fields, refused if not computed."""

from gearworks.config.architectures import SUPPORTED_ARCHITECTURES, ExpertsConfig, LatentConfig
from gearworks.config.model_config import GGUF_NAMES, ModelConfig
from gearworks.config.rope import RopeScaling

__all__ = ["GGUF_NAMES", "SUPPORTED_ARCHITECTURES", "ExpertsConfig", "LatentConfig",
           "ModelConfig", "RopeScaling"]
