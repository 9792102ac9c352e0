"""What vLLM's workers can do more for the lab (``--worker-extension-cls``); runs in the engine's environment."""

from typing import Any

from vllm.distributed.weight_transfer import WeightTransferEngineFactory

WeightTransferEngineFactory.register_engine("lightning_lab", "lightning_lab_engine", "BroadcastEngine")


class PublishedWeights:
    """Mixed into vLLM's worker class, whose ``model_runner`` it uses."""

    model_runner: Any

    def load_published(self, weights_path: str) -> None:
        """Reload all weights."""
        self.model_runner.reload_weights(weights_path=weights_path)
        pack_tied_output(self.model_runner.get_model())


def pack_tied_output(model: Any) -> None:
    """Pack an output layer that shares the weights of the embedding anew.

    On a CPU vLLM packs weights when they are loaded, and a tied layer is not loaded: without this it would go on with
    the packed weights of the first version.
    """
    for layer in model.modules():
        if hasattr(layer, "cpu_linear") and type(layer).__name__ == "ParallelLMHead":
            layer.quant_method.process_weights_after_loading(layer)
