"""The paper's Table 1 and Figure 3: labels of pictures, from a pre-trained network, frozen or trained on."""
