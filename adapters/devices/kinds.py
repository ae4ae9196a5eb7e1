"""The kinds of values that devices have: the properties of `ontology/kinds.ttl`, as the code needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Value = Literal["number", "boolean", "text", "any"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A property in the gateway's namespace.

    value: of its readings; unit: the usual one, in UCUM; acts: an actuator can act on it; follows: it is switched at
    the device as well, so an adopted actuator follows what it reports.
    """

    name: str
    label: str
    value: Value
    unit: str | None = None
    acts: bool = False
    follows: bool = False

    @property
    def iri(self) -> str:
        """The prefixed name."""
        return f"gateway:{self.name}"


# By name. A test compares the table with `ontology/kinds.ttl`.
KINDS = {
    kind.name: kind
    for kind in (
        Kind("motion", "motion", "boolean"),
        Kind("occupancy", "occupancy", "boolean"),
        Kind("contact", "contact", "boolean"),
        Kind("leak", "water leak", "boolean"),
        Kind("smoke", "smoke", "boolean"),
        Kind("gasAlarm", "gas alarm", "boolean"),
        Kind("carbonMonoxideAlarm", "carbon monoxide alarm", "boolean"),
        Kind("vibration", "vibration", "boolean"),
        Kind("tamper", "tamper", "boolean"),
        Kind("batteryLow", "battery low", "boolean"),
        Kind("charging", "charging", "boolean"),
        Kind("rain", "rain", "boolean"),
        Kind("soundDetected", "sound detected", "boolean"),
        Kind("lightDetected", "light detected", "boolean"),
        Kind("heatAlarm", "heat alarm", "boolean"),
        Kind("coldAlarm", "cold alarm", "boolean"),
        Kind("fault", "fault", "boolean"),
        Kind("running", "running", "boolean"),
        Kind("plugged", "plugged in", "boolean"),
        Kind("input", "input", "boolean"),
        Kind("updateAvailable", "update available", "boolean"),
        Kind("temperature", "temperature", "number", "Cel"),
        Kind("deviceTemperature", "device temperature", "number", "Cel"),
        Kind("humidity", "relative humidity", "number", "%"),
        Kind("absoluteHumidity", "absolute humidity", "number", "g/m3"),
        Kind("dewPoint", "dew point", "number", "Cel"),
        Kind("soilMoisture", "soil moisture", "number", "%"),
        Kind("pressure", "air pressure", "number", "hPa"),
        Kind("illuminance", "illuminance", "number", "lx"),
        Kind("irradiance", "irradiance", "number", "W/m2"),
        Kind("uvIndex", "UV index", "number"),
        Kind("carbonDioxide", "carbon dioxide", "number", "[ppm]"),
        Kind("carbonMonoxide", "carbon monoxide", "number", "[ppm]"),
        Kind("volatileCompounds", "volatile organic compounds", "number", "ug/m3"),
        Kind("formaldehyde", "formaldehyde", "number", "mg/m3"),
        Kind("pm1", "particles up to 1 µm", "number", "ug/m3"),
        Kind("pm25", "particles up to 2.5 µm", "number", "ug/m3"),
        Kind("pm10", "particles up to 10 µm", "number", "ug/m3"),
        Kind("airQuality", "air quality", "any"),
        Kind("power", "electric power", "number", "W"),
        Kind("apparentPower", "apparent power", "number", "V.A"),
        Kind("reactivePower", "reactive power", "number", "var"),
        Kind("powerFactor", "power factor", "number"),
        Kind("energy", "electric energy", "number", "kW.h"),
        Kind("energyProduced", "electric energy produced", "number", "kW.h"),
        Kind("voltage", "voltage", "number", "V"),
        Kind("current", "electric current", "number", "A"),
        Kind("frequency", "frequency", "number", "Hz"),
        Kind("battery", "battery", "number", "%"),
        Kind("linkQuality", "link quality", "number"),
        Kind("signalStrength", "signal strength", "number", "dB[mW]"),
        Kind("gasVolume", "gas volume", "number", "m3"),
        Kind("waterVolume", "water volume", "number", "m3"),
        Kind("volumeFlow", "volume flow", "number", "m3/h"),
        Kind("distance", "distance", "number", "m"),
        Kind("speed", "speed", "number", "m/s"),
        Kind("windSpeed", "wind speed", "number", "m/s"),
        Kind("windDirection", "wind direction", "number", "deg"),
        Kind("precipitation", "precipitation", "number", "mm"),
        Kind("precipitationRate", "precipitation rate", "number", "mm/h"),
        Kind("soundPressure", "sound pressure level", "number", "dB"),
        Kind("conductivity", "conductivity", "number", "uS/cm"),
        Kind("acidity", "acidity", "number"),
        Kind("weight", "weight", "number", "kg"),
        Kind("angle", "angle", "number", "deg"),
        Kind("duration", "duration", "number", "s"),
        Kind("counter", "counter", "number"),
        Kind("event", "event", "text"),
        Kind("switch", "switch", "boolean", acts=True, follows=True),
        Kind("light", "light", "boolean", acts=True, follows=True),
        Kind("brightness", "brightness", "number", acts=True, follows=True),
        Kind("colorTemperature", "colour temperature", "number", acts=True, follows=True),
        Kind("color", "colour", "text", acts=True, follows=True),
        Kind("transition", "transition", "number", "s", acts=True),
        Kind("effect", "effect", "text", acts=True, follows=True),
        Kind("cover", "cover", "text", acts=True),
        Kind("position", "position", "number", "%", acts=True),
        Kind("tilt", "tilt", "number", "%", acts=True),
        Kind("valve", "valve", "text", acts=True),
        Kind("lock", "lock", "boolean", acts=True),
        Kind("lockState", "lock state", "text"),
        Kind("fan", "fan", "boolean", acts=True, follows=True),
        Kind("fanSpeed", "fan speed", "number", "%", acts=True, follows=True),
        Kind("fanMode", "fan mode", "text", acts=True, follows=True),
        Kind("siren", "siren", "boolean", acts=True),
        Kind("climateMode", "climate mode", "text", acts=True),
        Kind("climateAction", "climate action", "text"),
        Kind("targetTemperature", "target temperature", "number", "Cel", acts=True),
        Kind("targetHumidity", "target humidity", "number", "%", acts=True),
        Kind("preset", "preset", "text", acts=True),
        Kind("childLock", "child lock", "boolean", acts=True),
        Kind("activity", "activity", "text", acts=True),
        Kind("alarm", "alarm", "text", acts=True),
        Kind("button", "button", "text", acts=True),
        Kind("valvePosition", "valve position", "number", "%", acts=True),
    )
}
