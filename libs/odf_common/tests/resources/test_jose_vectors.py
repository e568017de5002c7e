"""The examples of RFC 7516, appendix A, and of RFC 7518, appendix C, with the library that encrypts secrets."""

import base64
import json
from math import lcm

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from joserfc import jwe
from joserfc.jwk import ECKey, OctKey, RSAKey

A1 = (
    "eyJhbGciOiJSU0EtT0FFUCIsImVuYyI6IkEyNTZHQ00ifQ."
    "OKOawDo13gRp2ojaHV7LFpZcgV7T6DVZKTyKOMTYUmKoTCVJRgckCL9kiMT03JGe"
    "ipsEdY3mx_etLbbWSrFr05kLzcSr4qKAq7YN7e9jwQRb23nfa6c9d-StnImGyFDb"
    "Sv04uVuxIp5Zms1gNxKKK2Da14B8S4rzVRltdYwam_lDp5XnZAYpQdb76FdIKLaV"
    "mqgfwX7XWRxv2322i-vDxRfqNzo_tETKzpVLzfiwQyeyPGLBIO56YJ7eObdv0je8"
    "1860ppamavo35UgoRdbYaBcoh9QcfylQr66oc6vFWXRcZ_ZT2LawVCWTIy3brGPi"
    "6UklfCpIMfIjf7iGdXKHzg."
    "48V1_ALb6US04U3b."
    "5eym8TW_c8SuK0ltJ3rpYIzOeDQz7TALvtu6UG9oMo4vpzs9tX_EFShS8iB7j6jiSdiwkIr3ajwQzaBtQD_A."
    "XFBoMYUZodetZdvTiFvSkQ"
)
A1_P = (
    "1r52Xk46c-LsfB5P442p7atdPUrxQSy4mti_tZI3Mgf2EuFVbUoDBvaRQ-SWxkbkmoEzL7JXroSBjSrK3YIQgYdMgyAEPTPjXv_hI2_1eTSPVZfzL0lf"
    "fNn03IXqWF5MDFuoUYE0hzb2vhrlN_rKrbfDIwUbTrjjgieRbwC6Cl0"
)
A1_Q = (
    "wLb35x7hmQWZsWJmB_vle87ihgZ19S8lBEROLIsZG4ayZVe9Hi9gDVCOBmUDdaDYVTSNx_8Fyw1YYa9XGrGnDew00J28cRUoeBB_jKI1oma0Orv1T9aX"
    "IWxKwd4gvxFImOWr3QRL9KEBRzk2RatUBnmDZJTIAfwTs0g68UZHvtc"
)
A3 = (
    "eyJhbGciOiJBMTI4S1ciLCJlbmMiOiJBMTI4Q0JDLUhTMjU2In0."
    "6KB707dM9YTIgHtLvtgWQ8mKwboJW3of9locizkDTHzBC2IlrT1oOQ."
    "AxY8DCtDaGlsbGljb3RoZQ."
    "KDlTtXchhZTGufMYmOYGS4HffxPSUrfmqCHXaI9wOGY."
    "U0m_YmjN04DJvceFICbCVQ"
)
C_ALICE = {
    "kty": "EC",
    "crv": "P-256",
    "x": "gI0GAILBdu7T53akrFmMyGcsF3n5dO7MmwNBHKW5SV0",
    "y": "SLW_xSffzlPWrHEVI30DHM_4egVwt3NQqeUD7nMFpps",
}
C_BOB = {
    "kty": "EC",
    "crv": "P-256",
    "x": "weNJy2HscCSM6AEDTDg04biOvhFhyyWvOHQfeF_PxMQ",
    "y": "e8lnCO-AlStT-NJVX-crhB7QRYhiix03illJOVAOyck",
    "d": "VEmDZpDXXK8p8N0Cndsxs924q6nS1RXFASRl6BfUqdw",
}
C_DERIVED = "VqqN6vgjbSBcIijNcacQGg"


def b64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


def opened(text: str, key: OctKey | ECKey | RSAKey, *algorithms: str) -> bytes | None:
    return jwe.decrypt_compact(text, key, algorithms=list(algorithms)).plaintext


def test_appendix_a_1_of_rfc_7516_has_our_encryption_of_content() -> None:
    p, q, e = (int.from_bytes(unb64(text)) for text in (A1_P, A1_Q, "AQAB"))
    d = pow(e, -1, lcm(p - 1, q - 1))
    numbers = rsa.RSAPrivateNumbers(
        p, q, d, d % (p - 1), d % (q - 1), rsa.rsa_crt_iqmp(p, q), rsa.RSAPublicNumbers(e, p * q)
    )
    key = RSAKey.import_key(numbers.private_key())
    assert (
        opened(A1, key, "RSA-OAEP", "A256GCM")
        == b"The true sign of intelligence is not knowledge but imagination."
    )


def test_appendix_a_3_of_rfc_7516_wraps_a_key_as_secrets_at_rest_do() -> None:
    key = OctKey.import_key({"kty": "oct", "k": "GawgguFyGrWKav7AX4VKUg"})
    assert opened(A3, key, "A128KW", "A128CBC-HS256") == b"Live long and prosper."


def test_appendix_c_of_rfc_7518_derives_the_key_of_clients() -> None:
    header = {
        "alg": "ECDH-ES",
        "enc": "A128GCM",
        "apu": "QWxpY2U",
        "apv": "Qm9i",
        "epk": C_ALICE,
    }
    protected, iv = b64(json.dumps(header).encode()), b"iv of a test"
    content = AESGCM(unb64(C_DERIVED)).encrypt(iv, b"for Bob", protected.encode())
    text = ".".join((protected, "", b64(iv), b64(content[:-16]), b64(content[-16:])))
    assert opened(text, ECKey.import_key({**C_BOB}), "ECDH-ES", "A128GCM") == b"for Bob"
