"""Unit codes of devices -> QUDT units.

The codes are UCUM, the SenML units of RFC 8428 and RFC 8798, and the spellings of Home Assistant, Zigbee2MQTT, Tasmota,
Shelly and ESPHome.
"""

from __future__ import annotations

from lamplighter.ontology.vocabulary import UNIT

UNIT_CHARS_MAX = 64
"""Of a code that is not in the table."""

_TABLE = """
DEG_C         Cel °C ºC ℃ degC C
DEG_F         [degF] °F ℉ degF F
K             K
PERCENT       % percent %EL
PERCENT_RH    %RH %rH
UNITLESS      1 /
NUM           {count} count pcs
DeciB         dB
DeciB_M       dBm
PPM           [ppm] ppm
PPB           [ppb] ppb
PH            [pH] pH
BEAT-PER-MIN  beat/min bpm
REV-PER-MIN   {rev}/min rpm RPM
PA            Pa
HectoPA       hPa
KiloPA        kPa
MilliBAR      mbar
BAR           bar
MegaPA        MPa
PSI           [psi] psi
IN_HG         [in_i'Hg] inHg
MilliM_HG     mm[Hg] mmHg
W             W
MilliW        mW
KiloW         kW
MegaW         MW
VA           V.A VA
KiloVA       kV.A kVA
VAR       var VAr VAR
KiloVAR   kvar kVAr
VAR-HR    var.h varh VArh
KiloVAR-HR  kvar.h kvarh kVArh
VA-HR        V.A.h VAh
J             J
KiloJ         kJ
MegaJ         MJ
GigaJ         GJ
W-HR          W.h Wh
KiloW-HR      kW.h kWh
MegaW-HR      MW.h MWh
KiloCAL       kcal
V             V
MilliV        mV
KiloV         kV
A             A
MilliA        mA
A-HR          A.h Ah
MilliA-HR     mA.h mAh
OHM           Ohm Ω ohm
KiloOHM       kOhm kΩ
S             S
S-PER-M       S/m
MicroS-PER-CentiM  uS/cm µS/cm μS/cm
MilliS-PER-CentiM  mS/cm
C             Coulomb
F             Farad
H             Henry
T             T
MicroT        uT µT μT
WB            Wb
HZ            Hz /s 1/s
KiloHZ        kHz
MegaHZ        MHz
GigaHZ        GHz
M             m meters
CentiM        cm
MilliM        mm
MicroM        um µm μm
KiloM         km
IN            [in_i] in
FT            [ft_i] ft
YD            [yd_i] yd
MI            [mi_i] mi
M2            m2 m²
CentiM2       cm2 cm²
FT2           [sft_i] ft²
M3            m3 m³
L             l L
MilliL        ml mL
GAL_US        [gal_us] gal
FT3           [cft_i] ft³
M-PER-SEC     m/s
KiloM-PER-HR  km/h kph
MI-PER-HR     [mi_i]/h mph
KN            [kn_i] kn
FT-PER-SEC    [ft_i]/s ft/s
MilliM-PER-HR mm/h
MilliM-PER-DAY mm/d
M-PER-SEC2    m/s2 m/s²
M3-PER-SEC    m3/s m³/s
M3-PER-HR     m3/h m³/h
L-PER-MIN     l/min L/min
L-PER-SEC     l/s L/s
L-PER-HR      l/h L/h
GAL_US-PER-MIN [gal_us]/min gal/min
KiloGM        kg
GM            g
MilliGM       mg
MicroGM       ug µg μg
TONNE         t
LB            [lb_av] lb
OZ            [oz_av] oz
KiloGM-PER-M3 kg/m3 kg/m³
GM-PER-M3     g/m3 g/m³
MilliGM-PER-M3  mg/m3 mg/m³
MicroGM-PER-M3  ug/m3 µg/m³ μg/m³
NUM-PER-M3    {#}/m3 p/m³
MilliGM-PER-L mg/l mg/L
LUX           lx Lx lux
LM            lm
CD            cd
CD-PER-M2     cd/m2 cd/m²
W-PER-M2      W/m2 W/m²
SEC           s sec Sec seconds
MilliSEC      ms
MicroSEC      us µs μs
MIN           min minute minutes
HR            h hr Hr hour hours Hours
DAY           d day days
WK            wk week
MO            mo
YR            a yr year
RAD           rad
DEG           deg ° lat lon
SR            sr
RAD-PER-SEC   rad/s
DEG-PER-SEC   deg/s °/s
BIT           bit
BYTE          By B byte
KiloBYTE      kBy kB
MegaBYTE      MBy MB
GigaBYTE      GBy GB
KibiBYTE      KiBy KiB
MebiBYTE      MiBy MiB
GibiBYTE      GiBy GiB
BIT-PER-SEC   bit/s
KiloBIT-PER-SEC  kbit/s
MegaBIT-PER-SEC  Mbit/s
BYTE-PER-SEC  By/s B/s
N             N
KiloN         kN
N-M           N.m
BQ            Bq
BQ-PER-M3     Bq/m3 Bq/m³
GRAY          Gy
SV            Sv
MicroSV-PER-HR  uSv/h µSv/h μSv/h
KAT           kat
MOL           mol
"""

_UNITS = {code: UNIT + line.split()[0] for line in _TABLE.splitlines() if line for code in line.split()[1:]}
_CODES = {UNIT + line.split()[0]: line.split()[1] for line in _TABLE.splitlines() if line}


def qudt(code: str) -> str | None:
    """The IRI of a unit, or None if the code is unknown. Case matters, as in UCUM."""
    return _UNITS.get(code.strip())


def ucum(unit: str) -> str | None:
    """The UCUM code of a unit of the table, or the first code that it has there; None for another unit."""
    return _CODES.get(unit)


def readable(code: str) -> bool:
    """Whether a code that is not in the table can be kept as text."""
    return 0 < len(code) <= UNIT_CHARS_MAX and code.isprintable()
