"""What vLLM's workers can do more for the lab (``--worker-extension-cls``); runs in the engine's environment."""

from typing import Any


class PublishedWeights:
    """Mixed into vLLM's worker class, whose ``model_runner`` it uses."""

    model_runner: Any

    def load_published(self, weights_path: str) -> None:
        """Reload all weights. An output layer that shares those of the embedding is packed anew.

        On a CPU vLLM packs weights when they are loaded, and a tied layer is not loaded: without this it would go on
        with the packed weights of the first version.
        """
        self.model_runner.reload_weights(weights_path=weights_path)
        for layer in self.model_runner.get_model().modules():
            if hasattr(layer, "cpu_linear") and type(layer).__name__ == "ParallelLMHead":
                layer.quant_method.process_weights_after_loading(layer)
